"""What docs/reliability.md promises, tried thousands of times: damage, kills and races; `make torture`.

    python benchmarks/torture.py [--output results/reliability.json] [--loads 500] [--kills 100] [--rounds 100]

A row per promise: how often it was tried (`cases`) and broken (`failures`), and in how many `seconds`. Needs a checkout and a POSIX
system. Exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import torch  # noqa: E402
from small_models import small_model, write_model  # noqa: E402

from diffusion_mf.errors import InputError  # noqa: E402
from diffusion_mf.lab.results import provenance, write_rows  # noqa: E402
from diffusion_mf.model.storage import StoredModel, load_model, restore, save_model  # noqa: E402
from diffusion_mf.tagger import Tagger  # noqa: E402
from diffusion_mf.training.checkpoint import read_state, write_checkpoint  # noqa: E402
from diffusion_mf.training.resumption import RunFolder  # noqa: E402

SENTENCES = [["Ada", "Byron", "sings"], ["unseen", "Ada", "in", "Oslo", "☃"]]
WEIGHT_FLIPS = 2000
"""bits of the weights that are flipped, at random: there are too many to try all"""
PROCESSES = 4
"""that want one folder at once"""


def flipped(path: Path, positions: list[int]) -> Iterator[None]:
    """Flip one bit after the other; the file is as before in the end."""
    original = path.read_bytes()
    for position in positions:
        damaged = bytearray(original)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        yield
    path.write_bytes(original)


def tagged(model: StoredModel) -> list[tuple[list[str], list[float]]]:
    results = Tagger(model, device="cpu").tag(SENTENCES)
    return [(list(result.labels), list(result.scores)) for result in results]


def flips_in_models(folder: Path, generator: random.Random) -> Iterator[bool]:
    write_model(folder)
    expected = tagged(load_model(folder))
    for path in sorted(folder.iterdir()):
        if path.name == "README.md":
            continue
        bits = list(range(8 * path.stat().st_size))
        for _ in flipped(path, generator.sample(bits, WEIGHT_FLIPS) if path.suffix == ".safetensors" else bits):
            try:
                yield tagged(load_model(folder)) == expected
            except InputError:
                yield True


def flips_in_checkpoints(folder: Path, generator: random.Random) -> Iterator[bool]:
    state = {"training": {"step": 12, "epoch": 3, "best_score": 91.25}, "labels": ["O", "Ä"], "log_bytes": 1234}
    write_checkpoint(folder, state, {"weights/a": torch.arange(6.0)})
    path = folder / "state.json"
    for _ in flipped(path, list(range(8 * path.stat().st_size))):
        try:
            yield read_state(folder) == state
        except InputError:
            yield True


def in_child(work: Callable[[], object]) -> int:
    """The process id of a fork that does ``work`` and ends: with 0, or 1 after an error."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:
        os._exit(1)
    os._exit(0)


def models_in_turn(folder: Path, models: list[StoredModel]) -> None:
    while True:
        for model in models:
            save_model(folder, *model)


def is_one_of(loaded: StoredModel, models: list[StoredModel]) -> bool:
    """Whether weights and temperature are those of the same model."""
    (model,) = (each for each in models if each.temperature == loaded.temperature)
    expected, found = model.labeller.state_dict(), loaded.labeller.state_dict()
    return all(torch.equal(found[name], expected[name]) for name in expected)


def loads_while_saving(folder: Path, num_loads: int) -> Iterator[bool]:
    models = [small_model(seed=seed, temperature=float(seed)) for seed in (1, 2)]
    save_model(folder, *models[0])
    child = in_child(lambda: models_in_turn(folder, models))
    try:
        for _ in range(num_loads):
            try:
                yield is_one_of(load_model(folder), models)
            except InputError:
                yield False
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def kills_while_saving(folder: Path, num_kills: int, generator: random.Random) -> Iterator[bool]:
    models = [small_model(seed=seed, temperature=float(seed)) for seed in (1, 2)]
    save_model(folder, *models[0])
    for _ in range(num_kills):
        child = in_child(lambda: models_in_turn(folder, models))
        time.sleep(generator.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        restore(folder)
        leftovers = [path for path in folder.parent.iterdir() if path.name.startswith(f".{folder.name}.")]
        yield not leftovers and is_one_of(load_model(folder), models)


def runs_in_one_folder(folder: Path, num_rounds: int) -> Iterator[bool]:
    def train(wait: int) -> None:
        with RunFolder(folder).locked(lambda message: None):
            select.select([wait], [], [], 30)  # until the pipe is closed, when the others have been refused

    for _ in range(num_rounds):
        wait, go = os.pipe()
        children = [in_child(lambda: (os.close(go), train(wait))) for _ in range(PROCESSES)]  # noqa: B023
        statuses = [os.waitpid(-1, 0)[1] for _ in range(PROCESSES - 1)]
        os.close(go)
        statuses.append(os.waitpid(-1, 0)[1])
        os.close(wait)
        yield sorted(os.waitstatus_to_exitcode(status) for status in statuses) == [0] + [1] * (len(children) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="results/reliability.json")
    parser.add_argument("--loads", type=int, default=500)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    generator = random.Random(arguments.seed)
    torch.set_num_threads(1)  # forks cannot use the threads of their parent
    with tempfile.TemporaryDirectory(prefix="diffusion-mf-") as temporary:
        root = Path(temporary)
        promises = {
            "a model with a flipped bit is refused or labels as before": flips_in_models(root / "flips", generator),
            "a checkpoint with a flipped bit is refused or the same": flips_in_checkpoints(root / "state", generator),
            "a model that is replaced while it is loaded is the old or the new one": loads_while_saving(
                root / "races", arguments.loads
            ),
            "a kill while a model is saved leaves a whole model and nothing else": kills_while_saving(
                root / "kills", arguments.kills, generator
            ),
            "of several runs in one folder, one trains and the others are refused": runs_in_one_folder(
                root / "run", arguments.rounds
            ),
        }
        rows = []
        for promise, outcomes in promises.items():
            start = time.monotonic()
            is_kept = list(outcomes)
            row = {"promise": promise, "cases": len(is_kept), "failures": is_kept.count(False)}
            rows.append({**row, "seconds": round(time.monotonic() - start, 1)})
            print(f"{promise}: {row['failures']:,} failures in {row['cases']:,} cases", flush=True)
    command = (
        f"python benchmarks/torture.py --loads {arguments.loads} --kills {arguments.kills} --rounds {arguments.rounds}"
    )
    made = provenance(command, measured=[ROOT / "src", Path(__file__).resolve()])
    write_rows(arguments.output, [{**row, **made} for row in rows], replace_by=("promise",))
    sys.exit(any(row["failures"] for row in rows))


if __name__ == "__main__":
    main()
