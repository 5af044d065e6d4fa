"""Plans run by real processes: killed and continued, shared by two runners, with runs that fail and that diverge."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from experiment_files import attempts_of, start_runner, write_plan

from diffusion_mf.lab.experiments.folders import RunPlace, RunState
from diffusion_mf.lab.experiments.plan import load_plan
from diffusion_mf.lab.experiments.processes import Claim
from diffusion_mf.lab.experiments.worker import train_and_score

SITE = """
import os, pathlib, signal, sys
if any(argument.endswith("experiments.worker") for argument in sys.orig_argv):
    flag = pathlib.Path(os.environ["CRASHED_ONCE"])
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_failures_are_retried_and_reported_and_diverged_runs_are_not(tmp_path: Path) -> None:
    plan = write_plan(
        tmp_path,
        """
systems = ["diffusion-mf"]
seeds = [1]
[variants.good]
[variants.diverging]
training.learning_rate = 1e9
training.warmup_steps = 0
training.clip_norm = 1e9
[variants.refused]
data.column = "xpos"
data.format = "conllu"
[evaluation]
calls = [1]
""",
    )
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    search_path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": search_path, "CRASHED_ONCE": str(tmp_path / "crashed")}
    output = tmp_path / "out"
    runner = start_runner(plan, output, "--workers", "2", "--json", environment=environment)
    stdout, stderr = runner.communicate(timeout=120)

    assert runner.returncode == 1, stderr
    outcomes = attempts_of(output)
    by_state = {row["state"]: outcomes[row["name"]] for row in json.loads(stdout)}
    # The first process of all was killed: that one failed, and was tried again.
    assert sum(attempts.count("failed") for attempts in by_state.values()) == 1
    assert {state: attempts[-1] for state, attempts in by_state.items()} == {
        "complete": "complete",
        "diverged": "diverged",
        "failed": "refused",
    }
    assert all(len([each for each in attempts if each != "failed"]) == 1 for attempts in by_state.values())
    assert "was not finite in" in stderr
    assert "diverged; the end of" in stderr
    assert "(ended by SIGKILL, as when memory runs out); it will be retried" in stderr
    variants = {row["state"]: row["variants"] for row in json.loads(stdout)}
    assert variants == {"complete": ["good"], "diverged": ["diverging"], "failed": ["refused"]}
    result = json.loads(next((output / "runs").glob("*.seed1.*/result.json")).read_text())
    assert set(result["test_decoders"]) == set(result["decoders"]) == {"argmax", "mask-viterbi"}
    assert result["test"] == result["test_decoders"][result["decoder"]]
    assert set(result["schedules"]) == {"calls=1"}
    for scores in (result["decoders"], result["test_decoders"], *result["schedules"]["calls=1"].values()):
        assert all(0 <= metrics["exact_match"] <= 100 for metrics in scores.values())
    assert result["commit"] is None or len(result["commit"]) >= 40
    assert result["analysis"]["calibration"]["bins"]
    _check_that_more_calls_need_no_training(next((output / "runs").glob("*/result.json")).parent)


def _check_that_more_calls_need_no_training(folder: Path) -> None:
    place = RunPlace(folder)
    before, log = place.result(), place.log.read_bytes()
    assert before is not None
    description = place.description()
    evaluation = {**description["evaluation"], "calls": [1, 3], "readings": ["mixture", "sampled"]}
    place.describe({**description, "evaluation": evaluation})
    # The probabilities of other schedules have a temperature of their own: the model's has no effect on them.
    stored = place.model / "config.json"
    stored.write_text(json.dumps(json.loads(stored.read_text()) | {"temperature": 9.0}))
    (place.model / "manifest.json").unlink(missing_ok=True)
    train_and_score(place, device="cpu")
    after = place.result()
    assert after is not None
    # With readings, those are the names; what was known before stays.
    readings = {f"posterior={reading} calls={calls}" for reading in ("mixture", "sampled") for calls in (1, 3)}
    assert set(after["schedules"]) == {"calls=1", *readings}
    for splits in after["schedules"].values():
        assert set(splits) == {"dev", "test"}
        for metrics in splits["dev"].values():
            assert metrics["negative_log_likelihood"] > 0
            assert 0 <= metrics["calibration_error"] <= 100
    # One call from uniform beliefs to π₀: nothing has been decided that a reading could read otherwise.
    first, mixed = (after["schedules"][name]["dev"] for name in ("calls=1", "posterior=mixture calls=1"))
    assert first == {name: pytest.approx(metrics) for name, metrics in mixed.items()}
    assert after["process"] == "categorical"
    assert place.state(evaluation) is RunState.COMPLETE
    assert place.state({**evaluation, "readings": ["product"]}) is not RunState.COMPLETE
    assert {key: after[key] for key in ("dev", "test", "seconds")} == {
        key: before[key] for key in ("dev", "test", "seconds")
    }
    assert after["schedules"]["calls=1"] == before["schedules"]["calls=1"]
    assert place.log.read_bytes() == log


def test_bits_are_also_scored_with_the_decoder_that_is_no_candidate(tmp_path: Path) -> None:
    plan = load_plan(
        write_plan(tmp_path, 'systems = ["diffusionsl"]\nseeds = [1]\n[evaluation]\nanalysis = false\n'),
        overrides=["training.epochs=1", "diffusion.num_steps=10", "bits.num_calls=2"],
    )
    place = RunPlace(tmp_path / "run")
    place.describe(
        {
            "coordinates": plan.runs[0].coordinates(),
            "source": plan.runs[0].source,
            "config": plan.runs[0].config.model_dump(mode="json"),
            "evaluation": {**plan.evaluation.model_dump(mode="json"), "calls": [1], "readings": ["mixture"]},
            "keep": "scores",
            "command": "dmf experiment run",
        }
    )
    train_and_score(place, device="cpu")
    result = place.result()
    assert result is not None
    assert set(result["decoders"]) == {"native", "mask-viterbi"}
    assert {split: set(scores) for split, scores in result["compared"].items()} == {
        "dev": {"argmax"},
        "test": {"argmax"},
    }
    # Bits have no posterior to read.
    assert (result["process"], set(result["schedules"])) == ("bits", {"calls=1"})


def test_missing_corpus_is_found_before_anything_runs(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, 'systems = ["unigram"]\nseeds = [1, 2]\n')
    (tmp_path / "corpus/ner/dev.txt").unlink()
    runner = start_runner(plan, tmp_path / "out")
    _, stderr = runner.communicate(timeout=60)
    assert runner.returncode == 2
    assert stderr.count("\n") == 1
    assert "corpus/ner/dev.txt: no such file" in stderr
    assert not (tmp_path / "out").exists()


def test_killed_plan_continues_and_two_runners_never_share_a_run(tmp_path: Path) -> None:
    plan = write_plan(
        tmp_path,
        """
systems = ["diffusion-mf", "lcrf"]
seeds = [1]
[set]
training.epochs = 20
training.evaluate_every = 10
[evaluation]
analysis = false
""",
        sentences=60,
    )
    output = tmp_path / "out"
    first, second = (start_runner(plan, output, "--workers", "1") for _ in range(2))
    _wait_for(lambda: sum('"event": "step"' in log.read_text() for log in (output / "runs").glob("*/log.jsonl")) == 2)
    # Each has one: a run is never run by both.
    assert [Claim.take(RunPlace(run)) for run in (output / "runs").iterdir()] == [None, None]
    # One is asked to stop; the other is killed outright, and takes its run with it.
    first.send_signal(signal.SIGTERM)
    second.kill()
    _, stderr = first.communicate(timeout=60)
    assert first.returncode == 143, stderr
    second.communicate(timeout=60)
    _wait_for(lambda: all(_is_free(RunPlace(run)) for run in (output / "runs").iterdir()))
    assert list(attempts_of(output).values()) == [["interrupted"]]
    steps = {path.parents[1].name: _step(path) for path in (output / "runs").glob("*/checkpoint/state.json")}
    assert len(steps) == 2
    assert not list((output / "runs").glob("*/result.json"))

    last = start_runner(plan, output, "--workers", "2")
    _, stderr = last.communicate(timeout=120)
    assert last.returncode == 0, stderr
    for name, attempts in attempts_of(output).items():
        assert attempts[-1] == "complete"
        assert attempts.count("complete") == 1
        log = [json.loads(line) for line in (output / "runs" / name / "log.jsonl").read_text().splitlines()]
        logged = [entry["step"] for entry in log if entry["event"] == "step"]
        assert logged == list(range(1, logged[-1] + 1))
        assert sum(entry["event"] == "start" for entry in log) == 1
        assert logged[-1] > steps[name] > 0

    # Nothing is left to do: no process is started.
    again = start_runner(plan, output)
    _, stderr = again.communicate(timeout=60)
    assert again.returncode == 0
    assert "2 of 2 runs complete" in stderr
    assert all(attempts.count("complete") == 1 for attempts in attempts_of(output).values())


def _is_free(place: RunPlace) -> bool:
    claim = Claim.take(place)
    if claim is not None:
        claim.release()
    return claim is not None


def _step(state: Path) -> int:
    return json.loads(state.read_text())["state"]["training"]["step"]


def _wait_for(condition: object, seconds: float = 60.0) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            pytest.fail("it did not happen in time")
        time.sleep(0.05)


def test_only_some_runs_of_a_plan(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, 'systems = ["unigram"]\nseeds = [1, 2]\n')
    output = tmp_path / "out"
    runner = start_runner(plan, output, "--only", "seed=2", "--json")
    stdout, stderr = runner.communicate(timeout=120)
    assert runner.returncode == 0, stderr
    assert [(".seed2." in row["name"], row["state"]) for row in json.loads(stdout)] == [(True, "complete")]
    assert len(attempts_of(output)) == 1
    # Tables know of the other one all the same.
    assert len(json.loads((output / "plans" / "plan.json").read_text())["runs"]) == 2
    refused = start_runner(plan, output, "--only", "seed=3")
    _, stderr = refused.communicate(timeout=60)
    assert refused.returncode == 2
    assert stderr == "dmf: --only seed=3: the plan has no seed '3'; choose among 1, 2.\n"
