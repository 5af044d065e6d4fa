"""What must not change with the number of calls, or with the way that work is split."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import small_runs
from child_processes import holds_in_child
from small_models import small_tagger, write_model

from diffusion_mf.model.storage import load_model
from diffusion_mf.systems import SYSTEMS
from diffusion_mf.tagger import TaggedSentence, Tagger
from diffusion_mf.training.loop import train
from diffusion_mf.training.progress import NotesOnly, Progress

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

    class Watching(NotesOnly):
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


def _are_same(found: list[TaggedSentence], expected: list[TaggedSentence]) -> list[bool]:
    return [
        one.labels == other.labels and np.allclose(one.scores, other.scores, rtol=0, atol=TOLERANCE)
        for one, other in zip(found, expected, strict=True)
    ]


def ways_to_tag(folder: Path, generator: Random, num_sentences: int) -> Iterator[bool]:
    """One by one, in batches, in another order, from several threads and in another process: the same labels and scores."""
    for system in SYSTEMS:
        tagger = small_tagger(system)
        sentences = _sentences(generator, num_sentences)
        expected = [tagger.tag([sentence])[0] for sentence in sentences]
        yield from _are_same(tagger.tag(sentences), expected)
        yield from _are_same(tagger.tag(sentences, batch_tokens=generator.randint(1, 200)), expected)
        order = generator.sample(range(num_sentences), num_sentences)
        shuffled = tagger.tag([sentences[index] for index in order])
        yield from _are_same(shuffled, [expected[index] for index in order])
        with ThreadPoolExecutor(4) as pool:
            in_threads = list(pool.map(tagger.tag, [[sentence] for sentence in sentences]))
        yield from _are_same([result for (result,) in in_threads], expected)
        tagger.save(folder / system)
        another = lambda: Tagger.load(folder / system, device="cpu").tag(sentences)  # noqa: E731, B023
        yield from [holds_in_child(lambda: all(_are_same(another(), expected)))] * num_sentences  # noqa: B023
