"""Accuracy and speed of taggers on a CPU: ours beside others that were trained on the same split.

A pass takes the words of all test sentences and gives their labels; loading is left out. Contestants take turns, pass by
pass, in one process: whatever else the machine does meets all of them alike.
"""

from __future__ import annotations

import gc
import hashlib
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from diffusion_mf.benchmarks.cpu_peers import Peer, Tag
from diffusion_mf.data.corpus import Corpus
from diffusion_mf.errors import InputError
from diffusion_mf.files import StrPath
from diffusion_mf.tagger import Tagger

ROW_KEY = ("corpus", "system", "calls", "pytorch_threads", "hardware")
PASSES = 5


class Contestant(NamedTuple):
    """A tagger ready to run, and what its row says about it."""

    tag: Tag
    facts: Mapping[str, Any]
    forget: Callable[[], None] = lambda: None
    """called before every pass: what earlier passes taught the tagger about the test file must not help it"""


def peer_contestants(
    peers: Sequence[Peer], train: Corpus, dev: Corpus, folder: StrPath, *, note: Callable[[str], None]
) -> list[Contestant]:
    """The peers that are installed, trained where ``folder`` does not hold them yet; the others are noted."""
    found = []
    for peer in peers:
        try:
            peer.import_module()
        except ImportError:
            note(f"{peer.name} is not installed and left out; pip install 'diffusion-mf[benchmark-cpu]'")
            continue
        # One that was trained otherwise must not be taken for this one.
        digest = hashlib.sha256(peer.description.encode()).hexdigest()[:8]
        place = Path(folder) / f"{peer.name}-{digest}"
        if not peer.is_trained(place):
            note(f"training {peer.name}")
            place.mkdir(parents=True, exist_ok=True)
            peer.train(train.sentences, dev.sentences, place)
        # One thread each: none of the peers' taggers uses more in one process.
        facts = {"system": peer.name, "is_ours": False, "calls": None, "threads": 1, "training": peer.description}
        found.append(Contestant(peer.load(place), facts))
    return found


def model_contestant(name: str, folder: StrPath, *, calls: int | None = None) -> Contestant:
    """One of our model folders under a name of the caller's."""
    tagger = Tagger.load(folder, device="cpu")
    tagger.keep_words()
    config = tagger.model.config

    def tag(sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        return [result.labels for result in tagger.tag(sentences, calls=calls)]

    facts = {
        "system": name,
        "is_ours": True,
        "calls": calls,
        "threads": torch.get_num_threads(),
        "training": f"{config.system} on a {config.encoder.title} encoder",
    }
    return Contestant(tag, facts, tagger.forget_words)


def measure_cpu(
    contestants: Sequence[Contestant],
    test: Corpus,
    *,
    passes: int = PASSES,
    advance: Callable[[int], None] = lambda count: None,
) -> list[dict[str, Any]]:
    """A row per contestant: accuracy (from an untimed pass), words per second (median of ``passes``) and both compared."""
    sentences = [list(sentence.units) for sentence in test if sentence.units]
    gold = [sentence.labels or () for sentence in test if sentence.units]
    num_words = sum(map(len, sentences))
    if not num_words:
        raise InputError("there is nothing to tag", path=test.path, remedy="name a file with sentences")
    accuracies = []
    for contestant in contestants:
        found = contestant.tag(sentences)
        pairs = ((a, b) for row, labels in zip(gold, found, strict=True) for a, b in zip(row, labels, strict=True))
        accuracies.append(100 * sum(a == b for a, b in pairs) / num_words)
        advance(1)
    seconds = _alternating_seconds(contestants, sentences, passes, advance)
    rows = []
    for contestant, accuracy, times in zip(contestants, accuracies, seconds, strict=True):
        rows.append(
            {
                **contestant.facts,
                "accuracy": round(accuracy, 2),
                "words_per_second": round(num_words / statistics.median(times)),
                "fastest_pass": round(num_words / min(times)),
                "slowest_pass": round(num_words / max(times)),
                "passes": passes,
                "words": num_words,
                "cores": num_cores(),
                "pytorch_threads": torch.get_num_threads(),
            }
        )
    for row in rows:
        row["matched_by"] = None if row["is_ours"] else best_match(row, rows)
    return rows


def best_match(peer: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The fastest of our models that is at least as accurate and as fast as a peer; None where there is none."""
    matching = [
        row
        for row in rows
        if row["is_ours"]
        and row["accuracy"] >= peer["accuracy"]
        and row["words_per_second"] >= peer["words_per_second"]
    ]
    return max(matching, key=lambda row: row["words_per_second"])["system"] if matching else None


def num_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _alternating_seconds(
    contestants: Sequence[Contestant],
    sentences: Sequence[Sequence[str]],
    passes: int,
    advance: Callable[[int], None],
) -> list[list[float]]:
    found: list[list[float]] = [[] for _ in contestants]
    for _ in range(passes):
        for times, contestant in zip(found, contestants, strict=True):
            # What a pass left behind is its own affair, not the next one's.
            gc.collect()
            contestant.forget()
            start = time.perf_counter()
            contestant.tag(sentences)
            times.append(time.perf_counter() - start)
            advance(1)
    return found
