"""SIGTERM, SIGHUP and SIGINT: at once before the first step, after the next step later on, with the exit status of the signal."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import small_runs
from hypothesis import given
from hypothesis import strategies as st

from diffusion_mf.batches.batching import fill_batches, fill_with_sentences, keyed_generator
from diffusion_mf.cli import main
from diffusion_mf.errors import TerminatedError
from diffusion_mf.training import loop
from diffusion_mf.training.checkpoint import read_checkpoint
from diffusion_mf.training.loop import train
from diffusion_mf.training.progress import Callbacks, Progress
from diffusion_mf.training.signals import stop_signals

STATUSES = [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]


@pytest.fixture
def _hangs_up() -> Iterator[None]:
    """Tests may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def arguments(_hangs_up: None, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``dmf train`` of a tiny model."""
    sizes = ["encoder.width=16", "encoder.heads=2", "encoder.layers=1", "training.budget=100"]
    given = [
        f"--set={name}"
        for name in (*sizes, f"data.train={corpus}/train.txt", f"data.dev={corpus}/dev.txt", "data.test=")
    ]
    command = ["train", "ner/unigram", "--output", str(tmp_path / "run"), "--device", "cpu", *given]
    monkeypatch.setattr(sys, "argv", ["dmf", *command])


@pytest.mark.parametrize(("number", "status"), STATUSES)
def test_a_signal_before_the_first_step_ends_the_run_at_once(
    arguments: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
    status: int,
) -> None:
    def plan(run: object, epoch: int) -> list[list[list[int]]]:
        assert epoch == 0, "the run goes on planning"
        os.kill(os.getpid(), number)
        return [[[0]]]

    monkeypatch.setattr(loop._Run, "_plan", plan)
    with pytest.raises(SystemExit) as found:
        main()
    assert found.value.code == status
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "run/model").exists()


@pytest.mark.parametrize(("number", "status"), STATUSES)
def test_a_later_signal_ends_the_run_after_its_step(
    arguments: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    show = loop._Run._show_progress

    def signalling(run: loop._Run, **options: object) -> None:
        show(run, **options)  # type: ignore[arg-type]
        if run.state.step == 2:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(loop._Run, "_show_progress", signalling)
    with pytest.raises(SystemExit) as found:
        main()
    assert found.value.code == status
    checkpoint = read_checkpoint(tmp_path / "run/checkpoint")
    assert checkpoint is not None
    assert checkpoint.state["training"]["step"] == 2


def test_a_signal_in_the_last_step_does_not_cost_the_last_evaluation(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_runs.small_config(corpus, {"system": "unigram", "training": {"epochs": 2, "evaluate_every": 2}})
    whole = train(config, output=tmp_path / "whole", device="cpu")
    show = loop._Run._show_progress

    def signalling(run: loop._Run, **options: object) -> None:
        show(run, **options)  # type: ignore[arg-type]
        if run.state.step == run.num_steps and run.state.position:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(loop._Run, "_show_progress", signalling)
        with pytest.raises(TerminatedError):
            train(config, output=tmp_path / "cut", device="cpu")
    assert not (tmp_path / "cut/model").exists()
    continued = train(config, output=tmp_path / "cut", device="cpu", resume=True)
    for name in ("model.safetensors", "metrics.json"):
        assert (continued / name).read_bytes() == (whole / name).read_bytes()


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals(lambda error, restore: pytest.fail("it was not ignored")):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_in_the_last_evaluation_ends_the_run_with_a_checkpoint(corpus: Path, tmp_path: Path) -> None:
    class Signalling(Callbacks):
        def update(self, progress: Progress, *, at_once: bool = False) -> None:
            if at_once and progress.epoch == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    config = small_runs.small_config(corpus, {"system": "unigram", "training": {"epochs": 1}})
    with pytest.raises(TerminatedError):
        train(config, output=tmp_path, device="cpu", display=Signalling(lambda message: None))
    checkpoint = read_checkpoint(tmp_path / "checkpoint")
    assert checkpoint is not None
    assert checkpoint.state["training"]["epoch"] == 1


def test_epochs_after_the_last_step_are_not_planned(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []
    run = object.__new__(loop._Run)
    run.settings = small_runs.small_config(corpus, {"training": {"epochs": 10**5, "max_steps": 5}}).training
    monkeypatch.setattr(loop._Run, "_plan", lambda self, epoch: planned.append(epoch) or [[[0]], [[1]]])
    assert run._count_steps() == 5
    assert planned == [0, 1, 2]


@given(
    lengths=st.lists(st.integers(0, 30), max_size=40),
    budget=st.integers(1, 100),
    max_sentences=st.none() | st.integers(1, 5),
    has_padding=st.booleans(),
    seed=st.integers(0, 9),
)
def test_sentences_fill_batches_as_groups_of_one_do(
    lengths: list[int], budget: int, max_sentences: int | None, has_padding: bool, seed: int
) -> None:
    order = list(range(len(lengths)))
    random.Random(seed).shuffle(order)
    options = {"max_sentences": max_sentences, "has_padding": has_padding}
    groups = fill_batches([[index] for index in order], lengths, budget, **options)  # type: ignore[arg-type]
    arrays = np.array(order, dtype=np.int64), np.array(lengths, dtype=np.int64)
    assert fill_with_sentences(*arrays, budget, **options) == groups  # type: ignore[arg-type]


def test_keyed_generators_draw_pythons_numbers() -> None:
    python, numpy = random.Random("batches 1 2"), keyed_generator("batches 1 2")
    assert [python.random() for _ in range(1000)] == [*numpy.random_sample(400), *numpy.random_sample(600)]
