"""Values beyond reason end in one sentence, before anything is allocated, and messages do not quote them in full."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import small_models
import small_runs
from hypothesis import given
from hypothesis import strategies as st

from diffusion_mf.config import Config, load_config, saved_config
from diffusion_mf.errors import InputError, quoted
from diffusion_mf.prediction.devices import choose_device

LONG_NUMBER = "9" * 5000
LONG_LABEL = "x" * 70_000


def assert_sentence(outcome: tuple[int, bytes, str], *, status: int = 2) -> str:
    assert outcome[0] == status
    assert outcome[2].startswith("dmf: ")
    assert "Traceback" not in outcome[2]
    assert len(outcome[2]) < 1000, "a sentence"
    assert outcome[2].count("\n") <= 1
    return outcome[2]


@pytest.mark.parametrize(
    "override",
    [
        f"training.epochs={LONG_NUMBER}",
        f"training.epochs=0x{'f' * 5000}",
        f"training.epochs={'[' * 100_000}",
        f"training.epochs={'[' * 200}{']' * 200}",
        f"{'a.' * 3000}b=1",
        f"{LONG_LABEL}=1",
        f"size={LONG_LABEL}",
        "tra[ining.epochs=3",
        "tra\nining.epochs=3",
        f"data.tag_column={LONG_NUMBER}",
        "seed=9223372036854775808",
        "encoder.width=1000000000",
        "encoder.layers=1000000000",
        "encoder.heads=1000000000",
        "encoder.window=1000000",
        "encoder.word_width=1000000000000",
        "encoder.max_characters=1000000000000",
        "denoiser.layers=100000",
        "structure.scorer_width=1000000000000",
        "structure.num_iterations=1000000000000",
        "diffusion.num_steps=1000000000000",
        "bits.temperature=1e300",
        "bits.temperature=1e-300",
        "bits.num_samples=1000000000000",
        "inference.num_calls=1000000000000",
        "training.threads=100000",
        "training.epochs=1000000000000",
        "training.budget=1000000000000000000000",
        "training.learning_rate=1e300",
        "data.scheme=plain",
        "data.train=\udcff",
    ],
)
def test_settings_beyond_reason_are_refused(dmf: Callable, override: str, tmp_path: Path) -> None:
    corpus = small_runs.write_small_corpus(tmp_path)
    files = [f"--set=data.train={corpus}/train.txt", f"--set=data.dev={corpus}/dev.txt", "--set=data.test="]
    outcome = dmf("train", "ner/diffusion-mf", "--output", tmp_path / "run", *files, "--set", override)
    assert_sentence(outcome)


def test_blocks_of_too_many_parameters_are_refused() -> None:
    with pytest.raises(InputError, match="256 layers of width 16384 have 825 billion parameters, more than 10 billion"):
        load_config("ner/unigram", ["encoder.layers=256", "encoder.width=16384", "encoder.heads=64"])


def test_the_limits_hold_for_a_models_files(tmp_path: Path) -> None:
    values = Config.model_validate({"task": "ner", "system": "unigram"}).model_dump(mode="json")
    values["encoder"]["layers"] = 10**9
    with pytest.raises(InputError, match=r"encoder\.layers must be less than or equal to 256"):
        saved_config(values, path=tmp_path / "config.json")


@pytest.mark.parametrize("text", [f"seed = {LONG_NUMBER}", f"seed = {'[' * 5000}", f"{'a.' * 3000}b = 1"])
def test_toml_beyond_reason_is_refused(dmf: Callable, text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text)
    assert f"{path}: not usable TOML" in assert_sentence(dmf("config", "show", path))


@pytest.mark.parametrize("name", ["n" * 3000, "a\\u0000b"])
def test_configurations_that_no_file_can_be_are_refused(dmf: Callable, name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(f'extends = "{name}"')
    assert "there is no configuration" in assert_sentence(dmf("config", "show", path))


@pytest.mark.parametrize(
    "row",
    [
        f'{{"units": ["a"], "document": {LONG_NUMBER}}}',
        f'{{"units": {"[" * 100_000}}}',
        f'{{"units": ["a"], "clamp": {"[" * 900}{"]" * 900}}}',
        f'{{"units": ["a"], "clamp": {{"0": {"[" * 900}{"]" * 900}}}}}',
        f'{{"units": ["a"], "clamp": {{"0": "{LONG_LABEL}"}}}}',
        '{"units": ["\\ud800"]}',
        '{"units": ["a"], "clamp": {"0": "\\ud800"}}',
    ],
)
def test_json_lines_beyond_reason_are_refused(dmf: Callable, row: str, tmp_path: Path) -> None:
    model = small_models.write_model(tmp_path / "model", "unigram")
    (tmp_path / "a.jsonl").write_text(row + "\n")
    outcome = dmf("tag", model, tmp_path / "a.jsonl", "--device", "cpu")
    assert f"{tmp_path / 'a.jsonl'}, line 1: " in assert_sentence(outcome)


def test_bare_carriage_returns_are_refused_with_their_line(dmf: Callable, tmp_path: Path) -> None:
    model = small_models.write_model(tmp_path / "model", "unigram")
    (tmp_path / "a.txt").write_bytes(b"a O\nb O\rc O\r")
    outcome = dmf("tag", model, tmp_path / "a.txt", "--format", "columns", "--device", "cpu")
    assert "line 2: a carriage return within the line" in assert_sentence(outcome)
    (tmp_path / "b.txt").write_bytes(b"a\rb\rc")
    outcome = dmf("tag", model, tmp_path / "b.txt", "--format", "columns", "--device", "cpu")
    assert "line 1: a carriage return within the line" in assert_sentence(outcome)


def test_notes_and_messages_shorten_labels(dmf: Callable, tmp_path: Path) -> None:
    model = small_models.write_model(tmp_path / "model", "unigram")
    (tmp_path / "a.txt").write_text(f"a B-{LONG_LABEL}\n\n")
    outcome = dmf("evaluate", model, tmp_path / "a.txt", "--device", "cpu")
    assert outcome.status == 0
    assert "B-xxx" in outcome.stderr
    assert len(outcome.stderr) < 1000
    assert len(str(InputError(f"no label {LONG_LABEL!r}", remedy=f"correct {LONG_LABEL}"))) < 200
    assert len(str(InputError("no such file", path=LONG_LABEL))) < 200


def test_notes_of_repairs_and_of_usage_shorten_what_they_quote(dmf: Callable, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"a I-{LONG_LABEL}\n\n")
    outcome = dmf("data", "stats", tmp_path / "a.txt", "--task", "ner", "--scheme", "bio2")
    assert outcome.status == 0
    assert "I-xxx" in outcome.stderr
    assert len(outcome.stderr) < 1000
    assert_sentence(dmf(LONG_LABEL))
    assert_sentence(dmf("tag", f"--{LONG_LABEL}"))


@given(value=st.text() | st.integers() | st.lists(st.text(), max_size=5))
def test_quotations_are_short(value: object) -> None:
    assert len(quoted(value)) <= 60 * 10 + 2, "an escaped character takes up to ten"
    if len(repr(value)) <= 60:
        assert quoted(value) == repr(value)


def test_quotations_of_what_has_no_repr() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    assert quoted(nested) == "something nested too deeply"
    assert quoted(1 << 50_000) == "a number of thousands of digits"
    while nested:  # taken apart step by step
        nested = nested.pop()  # type: ignore[assignment]


@pytest.mark.parametrize("name", ["toaster", "meta", "hpu", "vulkan", "xla", "cuda:99999999999999999999", LONG_LABEL])
def test_devices_that_are_not_there_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="there is no device") as found:
        choose_device(name)
    assert len(str(found.value)) < 300


@pytest.mark.parametrize(
    ("redirection", "status", "message"),
    [
        (">&-", 1, b"dmf: standard output cannot be written (it is closed)"),
        (">/dev/full", 1, b"dmf: standard output cannot be written (No space left on device)"),
        ("2>&-", 0, b""),
        ("<&-", 0, b""),
    ],
)
def test_closed_and_full_streams_end_in_a_sentence(redirection: str, status: int, message: bytes) -> None:
    command = f"{sys.executable} -m diffusion_mf.cli --version {redirection}"
    found = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert found.returncode == status
    assert found.stderr.startswith(message)
    assert b"Traceback" not in found.stderr
    assert found.stderr.count(b"\n") <= 1


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory")]
)
def test_too_little_memory_ends_in_a_sentence(
    dmf: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    def load(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("diffusion_mf.tagger.Tagger.load", load)
    outcome = dmf("tag", small_models.write_model(tmp_path / "model", "unigram"), "-", stdin=b"a b\n")
    assert "there is not enough memory" in assert_sentence(outcome, status=1)


def test_without_stderr_messages_do_not_become_results(tmp_path: Path) -> None:
    command = f"{sys.executable} -m diffusion_mf.cli config show {tmp_path}/none.toml 2>&-"
    found = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert (found.returncode, found.stdout) == (2, b"")


def test_a_full_device_is_refused_with_its_name(dmf: Callable, tmp_path: Path) -> None:
    model = small_models.write_model(tmp_path / "model", "unigram")
    outcome = dmf("tag", model, "-", "--output", "/dev/full", "--device", "cpu", stdin=b"a b\n")
    assert "/dev/full: cannot be written (No space left on device)" in assert_sentence(outcome)
