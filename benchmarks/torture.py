"""What docs/reliability.md promises, tried thousands of times: damage, kills and races; `make torture`.

    python benchmarks/torture.py [--output results/reliability.json] [--share 1.0] [--only TEXT]

A row per promise: how often it was tried (`cases`) and broken (`failures`), and in how many `seconds`; of memory also its growth
(`bytes_per_call`). `--share 0.01` tries everything a hundredth as often, `--only` the promises whose name contains a text. Needs a checkout
and Linux. Exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "lab" / "experiments")]

import child_processes  # noqa: E402
import endurance  # noqa: E402
import fuzzing  # noqa: E402
import small_runs  # noqa: E402
import torch  # noqa: E402
import torch._inductor.config  # noqa: E402 (every training run needs it, and forks share what is imported)
from child_processes import (  # noqa: E402
    close_pipe,
    cut_network,
    drop_rights,
    fill_disk,
    holds_in_child,
    in_child,
    run_command,
    status_of,
)
from experiment_files import write_plan  # noqa: E402
from small_models import small_model, write_model  # noqa: E402

from diffusion_mf.data.files import open_output  # noqa: E402
from diffusion_mf.errors import DiffusionMFError, InputError  # noqa: E402
from diffusion_mf.evaluation.terminal import Display  # noqa: E402
from diffusion_mf.lab.experiments import search as searching  # noqa: E402
from diffusion_mf.lab.experiments.folders import ExperimentFolder  # noqa: E402
from diffusion_mf.lab.experiments.plan import load_plan  # noqa: E402
from diffusion_mf.lab.experiments.scheduler import SchedulerOptions, run_plan  # noqa: E402
from diffusion_mf.lab.experiments.search_plan import load_search  # noqa: E402
from diffusion_mf.lab.results import provenance, write_rows  # noqa: E402
from diffusion_mf.model.storage import StoredModel, load_model, restore, save_model  # noqa: E402
from diffusion_mf.tagger import Tagger  # noqa: E402
from diffusion_mf.training.checkpoint import read_state, write_checkpoint  # noqa: E402
from diffusion_mf.training.loop import train  # noqa: E402
from diffusion_mf.training.resumption import RunFolder  # noqa: E402

SENTENCES = [["Ada", "Byron", "sings"], ["unseen", "Ada", "in", "Oslo", "☃"]]
WEIGHT_FLIPS = 2000
"""bits of the weights that are flipped, at random: there are too many to try all"""
PROCESSES = 4
"""that want one folder at once"""
MOST_GROWTH = 256.0
"""bytes of memory by call or step: less than any object that is kept"""


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


def flips_in_models(folder: Path, number: Callable[[int], int], generator: random.Random) -> Iterator[bool]:
    write_model(folder)
    expected = tagged(load_model(folder))
    for path in sorted(folder.iterdir()):
        if path.name == "README.md":
            continue
        bits = range(8 * path.stat().st_size)
        num_tried = number(WEIGHT_FLIPS if path.suffix == ".safetensors" else len(bits))
        for _ in flipped(path, generator.sample(bits, num_tried)):
            try:
                yield tagged(load_model(folder)) == expected
            except InputError:
                yield True


def flips_in_checkpoints(folder: Path) -> Iterator[bool]:
    state = {"training": {"step": 12, "epoch": 3, "best_score": 91.25}, "labels": ["O", "Ä"], "log_bytes": 1234}
    write_checkpoint(folder, state, {"weights/a": torch.arange(6.0)})
    path = folder / "state.json"
    for _ in flipped(path, list(range(8 * path.stat().st_size))):
        try:
            yield read_state(folder) == state
        except InputError:
            yield True


def models_in_turn(folder: Path, models: list[StoredModel]) -> None:
    while True:
        for model in models:
            save_model(folder, model)


def is_one_of(loaded: StoredModel, models: list[StoredModel]) -> bool:
    """Whether weights and temperature are those of the same model."""
    (model,) = (each for each in models if each.temperature == loaded.temperature)
    expected, found = model.labeller.state_dict(), loaded.labeller.state_dict()
    return all(torch.equal(found[name], expected[name]) for name in expected)


def loads_while_saving(folder: Path, num_loads: int) -> Iterator[bool]:
    models = [small_model(seed=seed, temperature=float(seed)) for seed in (1, 2)]
    save_model(folder, models[0])
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
    save_model(folder, models[0])
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


class Job(NamedTuple):
    """Work in a folder that can be continued after a kill, and what it amounts to in the end."""

    work: Callable[[Path], object]
    outcome: Callable[[Path], Any]


def is_whole(folder: Path) -> bool:
    """Whether every file is complete that has its final name; the last line of a log may be half."""
    try:
        for path in folder.rglob("*.json"):
            json.loads(path.read_bytes())
        for path in folder.rglob("model/config.json"):
            load_model(path.parent)
    except (ValueError, InputError):
        return False
    return True


def kills(root: Path, job: Job, num_kills: int, generator: random.Random) -> Iterator[bool]:
    """Kill ``job`` at random moments and continue it; what it amounts to must be as if nothing had happened."""
    root.mkdir()
    start = time.monotonic()
    yield status_of(in_child(lambda: job.work(root / "whole"))) == 0
    seconds = 0.7 * (time.monotonic() - start)  # what was started once is faster afterwards
    expected = job.outcome(root / "whole")
    attempt = num_done = 0
    while num_done < num_kills:
        attempt += 1
        folder = root / f"killed{attempt}"
        is_over = False
        while not is_over:
            child = in_child(lambda: job.work(folder))  # noqa: B023
            deadline = time.monotonic() + (generator.uniform(0, seconds) if num_done < num_kills else 600)
            while not (is_over := os.waitpid(child, os.WNOHANG)[0] != 0) and time.monotonic() < deadline:
                time.sleep(0.005)
            if not is_over:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                num_done += 1
                yield is_whole(folder)
        try:
            yield job.outcome(folder) == expected
        except (OSError, InputError):
            traceback.print_exc()
            yield False


def training(root: Path) -> Job:
    changes = {"training": {"epochs": 2, "threads": 1}}
    config = small_runs.small_config(small_runs.write_small_corpus(root), changes)

    def outcome(folder: Path) -> Any:
        tensors = {name: tensor.tolist() for name, tensor in sorted(small_runs.final_tensors(folder).items())}
        return tensors, [entry["loss"] for entry in small_runs.read_log(folder, "step")]

    return Job(lambda folder: train(config, output=folder, device="cpu", resume=True, checkpoint_every=0), outcome)


PLAN = """
systems = ["unigram", "lcrf"]
seeds = [1]
"""
SEARCH = """
systems = ["lcrf"]
[[stages]]
name = "transitions"
trials = 2
[stages.space]
structure.transitions = ["local", "global"]
"""


def _scores(folder: Path) -> dict[str, Any]:
    results = {path.parent.name: json.loads(path.read_bytes()) for path in (folder / "runs").glob("*/result.json")}
    return {name: (result["decoders"], result.get("test_decoders")) for name, result in sorted(results.items())}


def plan(root: Path) -> Job:
    loaded = load_plan(write_plan(root, PLAN))
    options = SchedulerOptions(devices=["cpu"])
    return Job(lambda folder: run_plan(loaded, ExperimentFolder(folder), options, Display()), _scores)


def search(root: Path) -> Job:
    loaded = load_search(write_plan(root, SEARCH))
    # Trials of a search that was killed are taken up when their heartbeats have stopped.
    searching.SECONDS_BETWEEN_HEARTBEATS, searching.SECONDS_UNTIL_STALE = 1, 2

    def opened(folder: Path) -> searching.Search:
        folder.mkdir(exist_ok=True)
        storage = searching.open_storage(searching.default_storage(folder))
        return searching.Search(loaded, storage, ExperimentFolder(folder))

    def outcome(folder: Path) -> Any:
        found = opened(folder)
        is_finished = [found.is_finished(subject) for subject in loaded.subjects]
        return is_finished, [found.best_settings(subject, 0) for subject in loaded.subjects], _scores(folder)

    def work(folder: Path) -> None:
        opened(folder).run(SchedulerOptions(devices=["cpu"], time_limit=600), Display())

    return Job(work, outcome)


def is_refused(call: Callable[[], object]) -> bool:
    """Whether ``call`` succeeds or ends in a sentence."""
    try:
        call()
    except DiffusionMFError as error:
        return "\n" not in str(error)
    return True


def _replace_file(path: Path) -> None:
    with open_output(path) as stream:
        stream.write(b"new" * 20_000)


def full_disks(root: Path, num_cases: int, generator: random.Random) -> Iterator[bool]:
    """Models, files and runs written when the disk becomes full; then what was there before is there still."""
    root.mkdir()
    models = [small_model("unigram", seed=seed, temperature=float(seed)) for seed in (1, 2)]
    config = small_runs.small_config(
        small_runs.write_small_corpus(root), {"system": "unigram", "training": {"epochs": 1}}
    )
    corpus = [path.name for path in root.iterdir()]
    run = functools.partial(train, config, output=root / "run", device="cpu", resume=True, checkpoint_every=0)
    for _ in range(num_cases):
        limit = generator.choice((0, 100, 1000, 10_000, 20_000, generator.randrange(80_000)))
        save_model(root / "model", models[0])
        (root / "file").write_bytes(b"old")
        saved = lambda: is_refused(lambda: save_model(root / "model", models[1]))  # noqa: E731
        yield holds_in_child(saved, lambda: fill_disk(limit)) and is_one_of(load_model(root / "model"), models)  # noqa: B023
        written = lambda: is_refused(lambda: _replace_file(root / "file"))  # noqa: E731
        yield holds_in_child(written, lambda: fill_disk(limit)) and (root / "file").read_bytes() in (  # noqa: B023
            b"old",
            b"new" * 20_000,
        )
        yield holds_in_child(lambda: is_refused(run), lambda: fill_disk(limit)) and is_whole(root / "run")  # noqa: B023
        yield {path.name for path in root.iterdir()} == {"file", "model", "run", *corpus}
    yield status_of(in_child(run)) == 0


def read_only_folders(root: Path, num_cases: int) -> Iterator[bool]:
    """The same without permission to write, as somebody who is not root."""
    root.mkdir()
    root.parent.chmod(0o755)
    model = small_model("unigram")
    config = small_runs.small_config(
        small_runs.write_small_corpus(root), {"system": "unigram", "training": {"epochs": 1}}
    )
    save_model(root / "model", model)
    (root / "file").write_bytes(b"old")
    train(config, output=root / "first", device="cpu")  # imports what somebody else may not be able to read
    root.chmod(0o555)
    (root / "model").chmod(0o555)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    calls = [
        lambda: save_model(root / "model", model),
        lambda: save_model(root / "other", model),
        lambda: _replace_file(root / "file"),
        lambda: train(config, output=root / "run", device="cpu"),
    ]

    def is_error(call: Callable[[], object]) -> bool:
        try:
            call()
        except InputError as error:
            return "Permission denied" in str(error)
        return False

    for call in calls * num_cases:
        yield holds_in_child(lambda: is_error(call), drop_rights)  # noqa: B023
        yield {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    yield holds_in_child(lambda: bool(Tagger.load(root / "model", device="cpu").tag(SENTENCES)), drop_rights)


def closed_pipes(root: Path, num_cases: int) -> Iterator[bool]:
    """Results that nobody reads: one quiet end, no traceback."""
    root.mkdir()
    corpus, model = small_runs.write_small_corpus(root), write_model(root / "model", "unigram")
    errors = root / "errors.txt"
    dev = corpus / "dev.txt"
    commands = [
        ("tag", model, dev, "--format", "columns", "--device", "cpu"),
        ("data", "stats", dev, "--task", "ner"),
        ("score", dev, dev, "--task", "ner", "--json"),
        ("config", "show", "ner/diffusion-mf"),
        ("--help",),
    ]
    for arguments in commands * num_cases:
        errors.unlink(missing_ok=True)
        status = status_of(in_child(lambda: (close_pipe(), run_command(*arguments, stderr=errors))))  # noqa: B023
        yield status in (0, 1) and "Traceback" not in errors.read_text()


def offline_commands(root: Path) -> Iterator[bool]:
    """Everything but the hub and the server, without a network."""
    root.mkdir()
    corpus = small_runs.write_small_corpus(root)
    train_file, dev, test = (corpus / f"{name}.txt" for name in ("train", "dev", "test"))
    config = small_runs.write_config(root / "a.toml", small_runs.settings(corpus, {"training": {"epochs": 1}}))
    model, device = root / "run/model", ("--device", "cpu")
    plan_file, search_file = (write_plan(root / name, text) for name, text in (("p", PLAN), ("s", SEARCH)))
    errors = root / "errors.txt"
    commands: list[tuple[object, ...]] = [
        ("--version",),
        ("data", "synth", root / "synth", "--sentences", "20", "--seed", "1"),
        ("data", "stats", train_file, dev, "--task", "ner", "--json"),
        ("data", "check", train_file),
        ("data", "convert", train_file, root / "a.jsonl", "--from", "columns", "--to", "jsonl"),
        ("config", "show", config),
        ("train", config, "--output", root / "run", *device),
        ("train", train_file, "--dev", dev, "--output", root / "auto", "--minutes", "0.1", *device),
        ("evaluate", model, test, *device),
        ("tag", model, test, "--output", root / "tagged.txt", *device),
        ("score", test, root / "tagged.txt", "--task", "ner", "--json"),
        ("errors", model, test, *device),
        ("explain", model, "Ada sings in Oslo.", "-o", root / "a.html"),
        ("experiment", "run", plan_file, "--output", root / "p/out", "--devices", "cpu"),
        ("experiment", "table", root / "p/out"),
        ("search", search_file, "--output", root / "s/out", *device),
    ]

    def is_offline() -> bool:
        try:
            socket.create_connection(("192.0.2.1", 80), timeout=1)
        except OSError as error:
            return "unreachable" in str(error)
        return False

    yield holds_in_child(is_offline, cut_network)
    for arguments in commands:
        silent = lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # noqa: E731
        child = in_child(lambda: (cut_network(), silent(), run_command(*arguments, stderr=errors)))  # noqa: B023
        is_kept = status_of(child) == 0
        if not is_kept:
            print(f"dmf {' '.join(map(str, arguments))}\n{errors.read_text()[-2000:]}", file=sys.stderr)
        yield is_kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="results/reliability.json")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    generator = random.Random(arguments.seed)
    torch.set_num_threads(1)  # forks cannot use the threads of their parent
    child_processes.LONGEST = 600  # a machine may have other work

    def number(full: int) -> int:
        return max(1, round(full * arguments.share))

    given = [f"--share {arguments.share:g}"] * (arguments.share != 1)
    given += [f"--only '{arguments.only}'"] * bool(arguments.only)
    command = " ".join(["python benchmarks/torture.py", *given])
    made = provenance(command, measured=[ROOT / "src", ROOT / "tests" / "support", Path(__file__).resolve()])
    num_broken = 0
    with tempfile.TemporaryDirectory(prefix="diffusion-mf-") as temporary:
        for promise, outcomes in promises(Path(temporary), number, generator).items():
            if arguments.only not in promise:
                continue
            start = time.monotonic()
            found = outcomes()
            row: dict[str, Any] = {"promise": promise}
            if isinstance(found, float):
                row |= {"cases": number(10_000), "failures": int(found > MOST_GROWTH)}
                row["bytes_per_call"] = round(found, 1)
            else:
                is_kept = list(found)
                row |= {"cases": len(is_kept), "failures": is_kept.count(False)}
            row["seconds"] = round(time.monotonic() - start, 1)
            num_broken += row["failures"] > 0
            print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
            write_rows(arguments.output, [{**row, **made}], replace_by=("promise",))
    sys.exit(num_broken > 0)


def promises(
    root: Path, number: Callable[[int], int], generator: random.Random
) -> dict[str, Callable[[], Iterator[bool] | float]]:
    def folder(name: str) -> Path:
        (root / name).mkdir()
        return root / name

    found: dict[str, Callable[[], Iterator[bool] | float]] = {
        "a model that is replaced while it is loaded is the old or the new one": lambda: loads_while_saving(
            root / "races", number(500)
        ),
        "a kill while a model is saved leaves a whole model and nothing else": lambda: kills_while_saving(
            root / "kills", number(100), generator
        ),
        "of several runs in one folder, one trains and the others are refused": lambda: runs_in_one_folder(
            root / "run", number(100)
        ),
        "a killed training run ends as if nothing had happened": lambda: kills(
            root / "train", training(root / "corpus"), number(140), generator
        ),
        "a killed experiment plan ends as if nothing had happened": lambda: kills(
            root / "plans", plan(folder("plan")), number(30), generator
        ),
        "a killed search ends as if nothing had happened": lambda: kills(
            root / "searches", search(folder("search")), number(30), generator
        ),
        "on a full disk what was there before is there still": lambda: full_disks(root / "full", number(50), generator),
        "in a read-only folder nothing is written and a model can be used": lambda: read_only_folders(
            root / "read-only", number(10)
        ),
        "a closed pipe ends a command quietly": lambda: closed_pipes(root / "pipes", number(10)),
        "no command but those for the hub and the server needs a network": lambda: offline_commands(root / "offline"),
        "one by one, batches, another order, threads and processes give the same labels": lambda: (
            same for _, same in endurance.ways_to_tag(folder("ways"), generator, number(100))
        ),
    }
    for index, (promise, growth) in enumerate(endurance.GROWTHS.items()):
        found[promise] = lambda growth=growth, index=index: growth(folder(f"growth{index}"), generator, number(10_000))  # type: ignore[misc]
    for index, (promise, (tried, share)) in enumerate(fuzzing.FUZZERS.items()):
        found[promise] = lambda tried=tried, share=share, index=index: tried(  # type: ignore[misc]
            folder(f"fuzz{index}"), (generator.randrange(2**32) for _ in range(number(round(1_005_000 * share))))
        )
    found |= {
        "a model with a flipped bit is refused or labels as before": lambda: flips_in_models(
            root / "flips", number, generator
        ),
        "a checkpoint with a flipped bit is refused or the same": lambda: flips_in_checkpoints(root / "state"),
    }
    return found


if __name__ == "__main__":
    main()
