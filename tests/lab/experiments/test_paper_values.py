"""The data file against values typed from the paper once more, and against itself."""

from __future__ import annotations

import statistics

import pytest

from diffusion_mf.lab.experiments.paper import (
    LANGUAGES,
    paper_ablation,
    paper_relative_throughput,
    paper_score,
    paper_sweep,
    paper_tables,
)
from diffusion_mf.systems import SYSTEMS

# The main table: EN, DE, FR, NL, Avg.; P, R, F1; Seg. F1, XPOS, Joint F1.
MAIN = {
    ("scratch", "unigram"): (91.48, 92.38, 94.58, 91.94, 92.60, 74.89, 72.70, 73.75, 86.25, 83.17, 77.01),
    ("scratch", "lcrf"): (94.02, 94.11, 96.60, 94.00, 94.68, 80.02, 77.80, 78.89, 91.09, 87.17, 83.78),
    ("scratch", "diffusionsl"): (93.83, 94.29, 96.67, 93.49, 94.57, 82.34, 77.48, 79.84, 90.37, 86.94, 83.89),
    ("scratch", "diffusion-mf"): (95.06, 94.85, 97.39, 94.93, 95.56, 81.46, 79.86, 80.65, 92.89, 89.50, 86.69),
    ("pretrained", "mean-field"): (98.28, 96.80, 98.14, 97.35, 97.64, 91.74, 92.45, 92.09, 98.06, 96.43, 95.29),
    ("pretrained", "diffusion-mf"): (98.50, 96.89, 98.30, 97.62, 97.83, 92.27, 92.75, 92.51, 98.27, 96.77, 95.71),
}
COLUMNS = [
    *((corpus, "accuracy") for corpus in (*LANGUAGES, "average")),
    *(("conll2003", metric) for metric in ("precision", "recall", "f1")),
    *(("zh-gsdsimp", metric) for metric in ("seg_f1", "gold_xpos", "joint_f1")),
]
# The comparison of denoisers: Diffusion-Uni, Diffusion-LCRF, Diffusion-MF.
DENOISERS = {
    ("scratch", "average", "accuracy"): (95.45, 92.34, 95.56),
    ("pretrained", "average", "accuracy"): (97.82, 97.77, 97.83),
    ("scratch", "conll2003", "f1"): (80.14, 79.83, 80.65),
    ("pretrained", "conll2003", "f1"): (92.49, 92.43, 92.51),
    ("scratch", "zh-gsdsimp", "joint_f1"): (86.52, 84.20, 86.69),
    ("pretrained", "zh-gsdsimp", "joint_f1"): (95.68, 95.38, 95.71),
}


@pytest.mark.parametrize(("place", "values"), MAIN.items(), ids=lambda value: str(value)[:40])
def test_selected_rows_of_the_full_tables_are_the_main_table(place: tuple[str, str], values: tuple[float, ...]) -> None:
    encoder, system = place
    found = [paper_score(corpus, system, encoder, metric) for corpus, metric in COLUMNS]
    assert [None if value is None else value.mean for value in found] == list(values)


@pytest.mark.parametrize(("place", "values"), DENOISERS.items(), ids=lambda value: str(value)[:40])
def test_comparison_of_denoisers(place: tuple[str, str, str], values: tuple[float, ...]) -> None:
    encoder, corpus, metric = place
    found = [paper_score(corpus, s, encoder, metric) for s in ("diffusion-uni", "diffusion-lcrf", "diffusion-mf")]
    assert [None if value is None else value.mean for value in found] == list(values)


def test_averages_are_means_of_the_languages() -> None:
    for encoder in ("scratch", "pretrained"):
        for values in paper_tables()["pos"][encoder].values():
            # The paper averages unrounded means: its last digit may differ by one.
            assert statistics.fmean(values[:4]) == pytest.approx(values[4], abs=0.0126)


@pytest.mark.parametrize("task", ["ner", "seg-pos"])
def test_full_tables_have_every_decoder_once_and_one_selected(task: str) -> None:
    for encoder in ("scratch", "pretrained"):
        for split in ("dev", "test"):
            rows = paper_tables()[task][f"{encoder}_{split}"]["rows"]
            for system, entry in SYSTEMS.items():
                own = [row for row in rows if row[0] == system]
                assert sorted(row[1] for row in own) == sorted(entry.constrained_decoders)
                assert sum(row[2] for row in own) == 1
            columns = paper_tables()[task].get("columns") or paper_tables()[task][f"{encoder}_columns"]
            assert {len(row) for row in rows} == {3 + 2 * len(columns)}


def test_selected_decoders_agree_on_both_splits() -> None:
    for task in ("ner", "seg-pos"):
        for encoder in ("scratch", "pretrained"):
            dev, test = (
                {tuple(row[:2]) for row in paper_tables()[task][f"{encoder}_{split}"]["rows"] if row[2]}
                for split in ("dev", "test")
            )
            assert dev == test


def test_values_picked_from_each_table() -> None:
    assert paper_score("conll2003", "diffusion-mf", "scratch", "recall", split="dev") == (86.01, 0.96)
    assert paper_score("conll2003", "unigram", "scratch", "f1", decoder="argmax") == (69.72, 0.54)
    assert paper_score("zh-gsdsimp", "diffusionsl", "x", "aligned_xpos", split="dev", decoder="native") == (97.28, 0.12)
    assert paper_score("zh-gsdsimp", "unigram", "scratch", "aligned_xpos") is None
    assert paper_score("en-ewt", "unigram", "scratch", "accuracy", split="dev") is None
    assert paper_ablation("objective", "no-denoising", "conll2003") == (79.69, 0.69)
    assert paper_ablation("objective", "no-posterior", "zh-gsdsimp", difference=True) == (0.14, 0.30)
    assert paper_ablation("calls", "20", "en-ewt", difference=True) == (-0.01, 0.03)
    assert paper_ablation("calls", "5", "fr-gsd") is None
    assert paper_sweep("scaling", "diffusion-mf", "XL") == (94.97, None)
    assert paper_sweep("scaling", "unigram", "XL") is None
    assert paper_sweep("scaling", "lcrf", "XS", encoder="roberta") == (98.22, None)
    assert paper_sweep("depth", "diffusion-uni", "12") == (94.90, None)
    assert paper_sweep("base", "diffusion-lcrf", "1.5") == (98.42, None)
    assert paper_sweep("base", "mean-field", "-") == (98.13, None)
    assert paper_relative_throughput("mean-field", "4", phase="inference") == (83.6, None)


def test_differences_of_the_ablations_follow_from_their_means() -> None:
    for corpus in paper_tables()["objective"]["columns"]:
        full = paper_ablation("objective", "full", corpus)
        assert full == paper_ablation("calls", "10", corpus)
        for kind, names, sign in (("objective", ("no-denoising", "no-posterior"), 1), ("calls", ("5", "20"), -1)):
            for name in names:
                other, difference = (paper_ablation(kind, name, corpus, difference=d) for d in (False, True))
                assert full is not None
                assert other is not None
                assert difference is not None
                assert sign * (full.mean - other.mean) == pytest.approx(difference.mean, abs=0.0151)
