"""Runs in a process of their own: each trains as ``dmf train --resume`` does, scores the model, leaves ``result.json``.

``python -m diffusion_mf.lab.experiments.worker RUN_FOLDER`` is started by `scheduler` for one run; the exit status tells it how the run
ended. With ``--serve`` the process takes one run after another from its input, and answers with what would be the exit status.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import shutil
import signal
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from diffusion_mf.errors import DivergenceError, InputError, TerminatedError
from diffusion_mf.lab.experiments.claims import SECONDS_BETWEEN_HEARTBEATS, Claim
from diffusion_mf.lab.experiments.folders import Outcome, RunPlace, without_test
from diffusion_mf.plugins import from_environment, import_plugins

if TYPE_CHECKING:
    from diffusion_mf.config import Config
    from diffusion_mf.evaluation.terminal import Display

EXIT_STATUSES = {
    Outcome.COMPLETE: 0,
    Outcome.FAILED: 1,
    Outcome.REFUSED: 2,
    Outcome.DIVERGED: 3,
    Outcome.INTERRUPTED: 130,
}


def main() -> None:
    """Run the run whose folder is the argument, or those that the input names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--claim", type=Path)
    parser.add_argument("--token")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    _end_with_parent(arguments.parent)
    if arguments.serve:
        _serve(arguments.parent)
        return
    claim = Claim(arguments.claim, arguments.token)
    outcome = _claimed_run(RunPlace(arguments.folder), claim, device=arguments.device, parent=arguments.parent)
    sys.exit(EXIT_STATUSES[outcome])


def _serve(parent: int) -> None:
    """Run what every line of the input names, until it ends."""
    # What runs print goes to their folders; only answers go to the pipe.
    answers = os.dup(1)
    for line in sys.stdin:
        request = json.loads(line)
        place = RunPlace(Path(request["folder"]))
        with place.output.open("ab") as output:
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
        claim = Claim(Path(request["claim"]), request["token"])
        outcome = _claimed_run(place, claim, device=request["device"], parent=parent)
        _free_memory()
        os.write(answers, f"{EXIT_STATUSES[outcome]}\n".encode())
        if outcome is Outcome.FAILED:
            return  # an error on a GPU may stay for all that follows


def _free_memory() -> None:
    """Forget the last run: its tensors, and what was compiled for it, of which PyTorch keeps only so much for one function."""
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
    gc.collect()
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_initialized():
            with contextlib.suppress(RuntimeError):
                torch.cuda.empty_cache()


def _claimed_run(place: RunPlace, claim: Claim, *, device: str, parent: int) -> Outcome:
    if not claim.adopt():
        print("another runner has taken over this run", file=sys.stderr)
        return Outcome.INTERRUPTED
    with _heartbeats(claim):
        outcome = _run(place, device=device)
    if os.getppid() != parent:
        claim.release()  # nobody else will
    return outcome


def _run(place: RunPlace, *, device: str) -> Outcome:
    try:
        if "sample" in place.description():
            from diffusion_mf.lab.experiments.sizes import train_on_sample

            train_on_sample(place, device=device)
        else:
            train_and_score(place, device=device)
    except (KeyboardInterrupt, TerminatedError):
        return Outcome.INTERRUPTED
    except DivergenceError as error:
        print(str(error), file=sys.stderr)
        return Outcome.DIVERGED
    except InputError as error:
        print(str(error), file=sys.stderr)
        return Outcome.REFUSED
    except Exception:
        traceback.print_exc()
        return Outcome.FAILED
    return Outcome.COMPLETE


def train_without_test(
    place: RunPlace,
    config: Config,
    *,
    device: str,
    checkpoint_every: float | None = None,
    display: Display | None = None,
) -> bool:
    """Start or resume the run of ``place``, and tell whether it was resumed; test data, which are read once, are not seen."""
    from diffusion_mf.training.loop import SECONDS_BETWEEN_CHECKPOINTS, train
    from diffusion_mf.training.resumption import RunFolder

    # The folder already holds files of the experiment.
    RunFolder(place.root).mark()
    is_resumed = place.checkpoint.exists() or place.model.exists()
    train(
        without_test(config),
        output=place.root,
        resume=is_resumed,
        device=device,
        checkpoint_every=SECONDS_BETWEEN_CHECKPOINTS if checkpoint_every is None else checkpoint_every,
        display=display,
    )
    return is_resumed


def train_and_score(place: RunPlace, *, device: str) -> None:
    """Train the run of a folder unless it is already trained, and write its result."""
    # Before PyTorch is imported: threads that spin while they wait starve each other on busy cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from diffusion_mf.config import saved_config
    from diffusion_mf.evaluation.terminal import Display
    from diffusion_mf.lab.experiments.scores import score_model
    from diffusion_mf.lab.results import provenance

    description = place.description()
    import_plugins(from_environment())
    config = saved_config(description["config"], path=place.root / "run.json")
    # A finished run is started again if a plan asks for further scores.
    known = (place.result() or {}) if place.model.exists() else {}
    if not known:
        train_without_test(
            place, config, device=device, checkpoint_every=description["checkpoint_every"], display=Display()
        )
    scored = time.monotonic()
    scores = score_model(place.model, config, description["evaluation"], device=device, known=known)
    entries = place.last_entries(num_bytes=sys.maxsize)
    trained = max((entry["seconds"] for entry in entries if "seconds" in entry), default=0.0)
    speeds = [entry["sentences_per_second"] for entry in entries if "sentences_per_second" in entry]
    place.save_result(
        {
            "name": place.name,
            **description["coordinates"],
            "task": config.task.value,
            **scores,
            "seconds": known.get("seconds") or trained,
            "sentences_per_second": statistics.median(speeds) if speeds else None,
            "scoring_seconds": round(time.monotonic() - scored, 3),
            "configuration": description["source"],
            "config": config.model_dump(mode="json"),
            **provenance(description["command"]),
        }
    )
    if description["keep"] != "all":
        shutil.rmtree(place.checkpoint, ignore_errors=True)
    if description["keep"] == "scores":
        shutil.rmtree(place.model, ignore_errors=True)


def _end_with_parent(parent: int) -> None:
    """Ask the kernel for a signal when the runner dies, so that no run goes on unwatched (Linux only)."""
    with contextlib.suppress(OSError, AttributeError):
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(EXIT_STATUSES[Outcome.INTERRUPTED])


@contextlib.contextmanager
def _heartbeats(claim: Claim) -> Iterator[None]:
    """Keep the claim fresh in the background; if it is lost, the process ends at once and writes nothing more."""
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(SECONDS_BETWEEN_HEARTBEATS):
            if not claim.beat():
                print("another runner has taken over this run", file=sys.stderr, flush=True)
                os._exit(EXIT_STATUSES[Outcome.INTERRUPTED])

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


if __name__ == "__main__":
    main()
