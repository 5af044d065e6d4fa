"""How long a sentence takes from Python, one at a time, while every core of the machine is busy with something else.

    python benchmarks/one_by_one.py MODEL FILE [--sentences 10000] [--seconds 120] [--idle] [--json]

MODEL is a folder, FILE has a sentence per line with blanks between its words. Ends after so many sentences or seconds, whichever
is first. Prints the median and the 95th percentile of the times in milliseconds; the latter should be within three times the
former.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import time

WARM_UP = 20


def keep_busy(seconds: float) -> None:
    """Count until the time is up, or the process that started this one is gone."""
    parent, end = os.getppid(), time.monotonic() + seconds
    while time.monotonic() < end and os.getppid() == parent:
        for _ in range(100_000):
            pass


def percentile(times: list[float], share: float) -> float:
    """Nearest rank."""
    return sorted(times)[max(0, math.ceil(share * len(times)) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("file")
    parser.add_argument("--sentences", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--idle", action="store_true", help="leave the other cores alone")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    from diffusion_mf import Tagger

    tagger = Tagger.load(arguments.model, device="cpu")
    with open(arguments.file, encoding="utf-8") as lines:
        sentences = [line.split() for line in lines if line.strip()]
    num_cores = len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    busy = [
        context.Process(target=keep_busy, args=(2 * arguments.seconds + 60,), daemon=True) for _ in range(num_cores)
    ]
    times = []
    try:
        for process in [] if arguments.idle else busy:
            process.start()
        end = time.monotonic() + arguments.seconds
        for number, sentence in enumerate(itertools.islice(itertools.cycle(sentences), arguments.sentences + WARM_UP)):
            start = time.perf_counter()
            tagger.tag([sentence])
            if number >= WARM_UP:
                times.append(1000 * (time.perf_counter() - start))
            if time.monotonic() > end and times:
                break
    finally:
        for process in busy:
            if process.is_alive():
                process.kill()
    median, p95 = percentile(times, 0.5), percentile(times, 0.95)
    if arguments.json:
        print(json.dumps({"sentences": len(times), "cores": num_cores, "p50_ms": median, "p95_ms": p95}))
    else:
        print(
            f"{len(times)} sentences, {num_cores} cores: median {median:.1f} ms, p95 {p95:.1f} ms ({p95 / median:.1f} times)"
        )


if __name__ == "__main__":
    main()
