"""A run in a process of its own: it trains as ``dmf train --resume`` does, scores the model and leaves ``result.json``.

``python -m diffusion_mf.lab.experiments.worker RUN_FOLDER`` is started by `scheduler`; the exit status tells it how the run ended.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shutil
import signal
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from diffusion_mf.errors import DivergenceError, InputError, TerminatedError
from diffusion_mf.lab.experiments.folders import Outcome, RunPlace, without_test
from diffusion_mf.lab.experiments.same_data import check_unchanged
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
    """Run the run whose folder is the argument."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", required=True)
    parser.add_argument("--claim", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    # Programs that the run starts must not hold its claim.
    os.set_inheritable(arguments.claim, False)
    _end_with_parent(arguments.parent)
    sys.exit(EXIT_STATUSES[_run(RunPlace(arguments.folder), device=arguments.device)])


def _run(place: RunPlace, *, device: str) -> Outcome:
    try:
        check_unchanged(place)
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


def train_without_test(place: RunPlace, config: Config, *, device: str, display: Display | None = None) -> bool:
    """Start or resume the run of ``place``, and tell whether it was resumed; test data, which are read once, are not seen."""
    from diffusion_mf.training.loop import train
    from diffusion_mf.training.resumption import RunFolder

    # The folder already holds files of the experiment.
    RunFolder(place.root).mark()
    is_resumed = place.checkpoint.exists() or place.model.exists()
    train(without_test(config), output=place.root, resume=is_resumed, device=device, display=display)
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
        train_without_test(place, config, device=device, display=Display())
    scored = time.monotonic()
    scores = score_model(place.model, config, description["evaluation"], device=device, known=known)
    entries = place.last_entries(num_bytes=sys.maxsize)
    trained = max((entry["seconds"] for entry in entries if "seconds" in entry), default=0.0)
    speeds = [entry["sentences_per_second"] for entry in entries if "sentences_per_second" in entry]
    check_unchanged(place)
    place.save_result(
        {
            "name": place.name,
            **description["coordinates"],
            "task": config.task.value,
            "data": (known or description).get("data", {}),
            **scores,
            "seconds": known.get("seconds") or trained,
            "sentences_per_second": statistics.median(speeds) if speeds else None,
            "scoring_seconds": round(time.monotonic() - scored, 3),
            "configuration": description["source"],
            "config": config.model_dump(mode="json"),
            **provenance(description["command"]),
        }
    )
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


if __name__ == "__main__":
    main()
