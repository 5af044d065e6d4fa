"""How fast CoNLL-U is read to labelled sentences beside the conllu package, and how much memory streaming takes.

    DIFFUSION_MF_DATA=… python benchmarks/read_corpora.py

Every measurement runs in a process of its own; the readers take turns, and the best of the rounds counts, for the machine
can only slow a reader down. Prints a table and writes results/reading.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import half_up, print_table
from diffusion_mf.lab.results import provenance, write_rows

ROOT = Path(__file__).resolve().parent.parent
CORPUS = "ud-2.15/UD_English-EWT/en_ewt-ud-train.conllu"
TIMES_LONGER = 10
MEASURED = [
    Path(__file__).resolve(),
    "data/conllu.py",
    "data/sentence.py",
    "data/files.py",
    "errors.py",
]


def with_diffusion_mf(path: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...] | None]]:
    from diffusion_mf.data.conllu import read_conllu

    return ((sentence.units, sentence.labels) for sentence in read_conllu(path))


def with_conllu(path: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    import conllu

    with open(path, encoding="utf-8") as stream:
        for tokens in conllu.parse_incr(stream):
            words = [token for token in tokens if isinstance(token["id"], int)]
            yield tuple(word["form"] for word in words), tuple(word["upos"] for word in words)


READERS = {"diffusion_mf": with_diffusion_mf, "conllu": with_conllu}


def measure_here(library: str, path: str) -> dict[str, float]:
    """Stream the file once, keeping nothing."""
    next(READERS[library](path))  # imports are not reading
    start = time.perf_counter()
    sentences = units = 0
    for forms, labels in READERS[library](path):
        assert labels is not None
        assert len(forms) == len(labels)
        sentences += 1
        units += len(forms)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"sentences": sentences, "units": units, "seconds": seconds, "peak_memory_mb": peak}


def measure(library: str, path: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", library, str(path)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description="Reading speed and memory; writes results/reading.json.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "reading.json")
    parser.add_argument("--measure", nargs=2, metavar=("LIBRARY", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure_here(*arguments.measure)))
        return
    if not os.environ.get("DIFFUSION_MF_DATA"):
        sys.exit(str(InputError("DIFFUSION_MF_DATA does not name the folder of the corpora", remedy="set it")))
    path = Path(os.environ["DIFFUSION_MF_DATA"]) / CORPUS
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        long = Path(folder) / "long.conllu"
        with long.open("wb") as stream:
            for _ in range(TIMES_LONGER):
                with path.open("rb") as source:
                    shutil.copyfileobj(source, stream)
        runs: dict[str, list[dict[str, float]]] = {library: [] for library in READERS}
        for _ in range(arguments.rounds):
            for library in READERS:
                runs[library].append(measure(library, path))
        long_runs = [measure("diffusion_mf", long)]
        # After all measurements: it imports PyTorch, and a child's peak memory begins with its parent's.
        shared = provenance("python benchmarks/read_corpora.py", packages=["conllu"], measured=MEASURED)
        conllu_seconds = min(run["seconds"] for run in runs["conllu"])
        for library, file_runs in (*runs.items(), ("diffusion_mf", long_runs)):
            best = min(file_runs, key=lambda run: run["seconds"])
            factor = round(best["units"] / runs[library][0]["units"])
            rows.append(
                {
                    "corpus": "en-ewt train" if factor == 1 else f"en-ewt train, {factor} times over",
                    "library": library,
                    "sentences": best["sentences"],
                    "units": best["units"],
                    "seconds": round(best["seconds"], 4),
                    "rounds": len(file_runs),
                    "units_per_second": round(best["units"] / best["seconds"]),
                    # Measured in this run only on the file itself; the long one is about memory.
                    "times_faster_than_conllu": round(conllu_seconds / best["seconds"], 2) if factor == 1 else None,
                    "peak_memory_mb": round(max(run["peak_memory_mb"] for run in file_runs), 1),
                    **shared,
                }
            )
    print_table(
        ["corpus", "library", "units", "seconds", "units/s", "× conllu", "peak MB"],
        [
            [
                row["corpus"],
                row["library"],
                row["units"],
                half_up(row["seconds"], 2),
                row["units_per_second"],
                None if row["times_faster_than_conllu"] is None else half_up(row["times_faster_than_conllu"], 1),
                half_up(row["peak_memory_mb"], 1),
            ]
            for row in rows
        ],
        title="Reading CoNLL-U to labelled sentences, streaming",
    )
    write_rows(arguments.output, rows, replace_by=["corpus", "library", "hardware"])


if __name__ == "__main__":
    main()
