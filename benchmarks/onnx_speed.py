"""Words per second of `diffusion_mf.Tagger` and of `diffusion_mf.onnx.Tagger` on one core, and how many labels differ.

    OMP_NUM_THREADS=1 python benchmarks/onnx_speed.py CORPUS FILE MODEL [MODEL…] [--sentences 2000] [--passes 5]

CORPUS is the name in the rows, such as en-ewt; FILE is a labelled file, MODEL a folder. Both taggers label the same sentences in turn, after a pass that does not count, in which they
fill their tables of words; the median pass is reported. Seconds are processor time, so that other work on the machine matters less. Prints
a table and writes results/onnx.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from diffusion_mf.data.corpus import Task
from diffusion_mf.evaluation.terminal import print_table
from diffusion_mf.lab.results import provenance, write_rows

ROOT = Path(__file__).resolve().parent.parent


def sentences_of(path: str, task: Task, most: int) -> list[tuple[str, ...]]:
    from diffusion_mf.data.formats import read_task

    return [sentence.units for sentence in read_task(path, task)][:most]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus")
    parser.add_argument("file")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "onnx.json")
    arguments = parser.parse_args()

    import torch

    from diffusion_mf import Tagger
    from diffusion_mf.onnx import Tagger as OnnxTagger
    from diffusion_mf.onnx.export import export_model

    torch.set_num_threads(1)
    shared = provenance(
        f"OMP_NUM_THREADS=1 python benchmarks/onnx_speed.py {arguments.corpus} {os.path.basename(arguments.file)} MODEL…",
        packages=["onnxruntime"],
        measured=[Path(__file__).resolve(), "onnx", "prediction", "tagger"],
    )
    rows = []
    for model in arguments.models:
        tagger = Tagger.load(model, device="cpu")
        with tempfile.TemporaryDirectory(prefix="diffusion-mf-") as folder:
            export_model(tagger.model, Path(folder) / "exported")
            exported = OnnxTagger.load(Path(folder) / "exported", threads=1)
        sentences = sentences_of(arguments.file, tagger.task, arguments.sentences)
        num_words = sum(map(len, sentences))
        labels = [[found.labels for found in each.tag(sentences)] for each in (tagger, exported)]
        num_different = sum(a != b for x, y in zip(*labels, strict=True) for a, b in zip(x, y, strict=True))
        seconds: list[list[float]] = [[], []]
        for _ in range(arguments.passes):
            for tag, times in zip((tagger.tag, exported.tag), seconds, strict=True):
                times.append(timed(tag, sentences))
        with_torch, with_onnx = (num_words / statistics.median(times) for times in seconds)
        config = tagger.model.config
        rows.append(
            {
                "corpus": arguments.corpus,
                "system": config.system,
                "encoder": config.encoder.kind,
                "parameters": sum(weights.numel() for weights in tagger.model.labeller.parameters()),
                "sentences": len(sentences),
                "words": num_words,
                "different_labels": num_different,
                "pytorch_words_per_second": round(with_torch),
                "onnx_words_per_second": round(with_onnx),
                "cores": 1,
                **shared,
            }
        )
    columns = ("system", "encoder", "words", "different_labels", "pytorch_words_per_second", "onnx_words_per_second")
    print_table(list(columns), [[f"{row[name]}" for name in columns] for row in rows])
    write_rows(arguments.output, rows, replace_by=("corpus", "system", "encoder"))


def timed(tag: Callable[[list[tuple[str, ...]]], object], sentences: list[tuple[str, ...]]) -> float:
    start = time.process_time()
    tag(sentences)
    return time.process_time() - start


if __name__ == "__main__":
    main()
