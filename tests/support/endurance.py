"""What must not change with the number of calls, or with the way that work is split."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import small_runs
from small_models import small_tagger, write_model

from diffusion_mf.model.storage import load_model
from diffusion_mf.systems import SYSTEMS
from diffusion_mf.tagger import TaggedSentence
from diffusion_mf.training.loop import train
from diffusion_mf.training.progress import Callbacks, Progress

WORDS = ["Ada", "Byron", "sings", "in", "Oslo", "for", "the", "royal", "choir", "Eve", "☃", "unseen", "x" * 40]
TOLERANCE = 1e-4
"""of scores: sums of other sizes are rounded differently"""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Memory:
    """The growth of memory by the number of calls, once caches are filled: in the last three quarters."""

    def __init__(self, num_calls: int) -> None:
        self.num_calls, self.every, self.samples = num_calls, max(1, num_calls // 200), list[tuple[int, int]]()

    def after(self, call: int) -> None:
        if call % self.every == 0 and call >= self.num_calls // 4:
            self.samples.append((call, resident_bytes()))

    def bytes_per_call(self) -> float:
        calls, sizes = np.array(self.samples, dtype=float).T
        return float(np.polyfit(calls, sizes, 1)[0])


def _repeated(call: Callable[[int], object], num_calls: int) -> float:
    memory = Memory(num_calls)
    for number in range(num_calls):
        call(number)
        memory.after(number)
    return memory.bytes_per_call()


def _sentences(generator: Random, number: int) -> list[list[str]]:
    return [generator.choices(WORDS, k=generator.randint(1, 30)) for _ in range(number)]


def growth_of_tagging(folder: Path, generator: Random, num_calls: int) -> float:
    tagger = small_tagger("lcrf")
    return _repeated(lambda number: tagger.tag([*_sentences(generator, 1), ["Ada", f"word{number}"]]), num_calls)


def growth_of_loading(folder: Path, generator: Random, num_calls: int) -> float:
    write_model(folder / "model", "lcrf")
    return _repeated(lambda number: load_model(folder / "model"), num_calls)


def growth_of_training(folder: Path, generator: Random, num_calls: int) -> float:
    memory = Memory(num_calls)

    class Watching(Callbacks):
        def update(self, progress: Progress, *, at_once: bool = False) -> None:
            memory.after(progress.step)

    few = {
        "epochs": num_calls,
        "max_steps": num_calls,
        "accumulation": 1,
        "evaluate_every": num_calls,
        "log_every": 1000,
    }
    changes = {"system": "lcrf", "training": {**few, "budget": 20, "threads": 1}}
    config = small_runs.small_config(small_runs.write_small_corpus(folder), changes)
    train(config, output=folder / "run", device="cpu", display=Watching(lambda message: None))
    return memory.bytes_per_call()


GROWTHS: dict[str, Callable[[Path, Random, int], float]] = {
    "tagging needs no more memory with every call": growth_of_tagging,
    "loading needs no more memory with every call": growth_of_loading,
    "training needs no more memory with every step": growth_of_training,
}


def _are_same(labels: Sequence[str], scores: Sequence[float], expected: TaggedSentence) -> bool:
    return list(labels) == list(expected.labels) and np.allclose(scores, expected.scores, rtol=0, atol=TOLERANCE)


IN_ANOTHER_PROCESS = """
import json, sys
from diffusion_mf import Tagger
folder, sentences = json.load(sys.stdin)
found = {system: Tagger.load(f"{folder}/{system}", device="cpu").tag(texts) for system, texts in sentences.items()}
json.dump({system: [(result.labels, result.scores) for result in results] for system, results in found.items()}, sys.stdout)
"""


def ways_to_tag(folder: Path, generator: Random, num_sentences: int) -> Iterator[tuple[str, bool]]:
    """One by one, in batches, in another order, from several threads and in another process: the same labels and scores."""
    sentences = {system: _sentences(generator, num_sentences) for system in SYSTEMS}
    expected: dict[str, list[TaggedSentence]] = {}

    def compare(system: str, way: str, found: list[TaggedSentence], order: list[int]) -> Iterator[tuple[str, bool]]:
        for index, result in zip(order, found, strict=True):
            yield f"{system} {way}", _are_same(result.labels, result.scores, expected[system][index])

    for system in SYSTEMS:
        tagger = small_tagger(system)
        tagger.save(folder / system)
        given, in_order = sentences[system], list(range(num_sentences))
        expected[system] = [tagger.tag([sentence])[0] for sentence in given]
        yield from compare(system, "in one batch", tagger.tag(given), in_order)
        yield from compare(
            system, "in small batches", tagger.tag(given, batch_tokens=generator.randint(1, 200)), in_order
        )
        order = generator.sample(in_order, num_sentences)
        yield from compare(system, "in another order", tagger.tag([given[index] for index in order]), order)
        with ThreadPoolExecutor(4) as pool:
            in_threads = [result for (result,) in pool.map(tagger.tag, [[sentence] for sentence in given])]
        yield from compare(system, "in threads", in_threads, in_order)
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS]
    done = subprocess.run(
        command, input=json.dumps([str(folder), sentences]), stdout=subprocess.PIPE, text=True, check=True
    )
    for system, results in json.loads(done.stdout).items():
        for (labels, scores), result in zip(results, expected[system], strict=True):
            yield f"{system} in another process", _are_same(labels, scores, result)
