"""Tables from made-up results, with values computed by hand."""

from __future__ import annotations

import csv
import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from experiment_files import made_up_result, write_experiment
from typer.testing import CliRunner

from diffusion_mf.cli import app
from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.comparisons import TABLES
from diffusion_mf.lab.experiments.folders import ExperimentFolder, Outcome
from diffusion_mf.lab.experiments.plots import (
    calibration_points,
    draw_exact_match,
    draw_learning_curves,
    draw_variants,
    error_rates,
    read_logs,
)
from diffusion_mf.lab.experiments.record import marks, results_table, save_rows, update_readme
from diffusion_mf.lab.experiments.selection import read_outcomes
from diffusion_mf.lab.experiments.tables import PAPER_NOTE, comma_separated, json_text, latex, markdown, paper_note
from diffusion_mf.lab.results import read_rows


def _ner(system: str, seed: int, dev: dict[str, float], test: dict[str, float], **more: Any) -> tuple[Any, Any]:
    place = {"corpus": "conll2003", "system": system, "seed": seed}
    variant = more.pop("variant", None)
    return (place | ({"variant": variant} if variant else {}), made_up_result(dev=dev, test=test, **more))


@pytest.fixture
def main_folder(tmp_path: Path) -> Path:
    """Argmax is the best of seeds 1 and 2 on dev, but Mask-Viterbi on average; argmax is better on test."""
    runs = []
    for seed, (arg, mask) in enumerate([(80.0, 79.0), (82.0, 81.0), (70.0, 83.0), (80.0, 81.0)], 1):
        runs.append(
            _ner(
                "diffusion-mf",
                seed,
                {"argmax": arg, "mask-viterbi": mask},
                {"argmax": 99.0, "mask-viterbi": 85.0 + seed},
            )
        )
    for seed, viterbi in enumerate([86.0, 85.0, 85.0, 85.0], 1):
        runs.append(_ner("lcrf", seed, {"viterbi": 80.0}, {"viterbi": viterbi}, is_diffusion=False))
    runs.append(({"corpus": "conll2003", "system": "unigram", "seed": 1}, None))
    runs.append(_ner("unigram", 2, {"argmax": 50.0}, {"argmax": 51.0}, is_diffusion=False))
    return write_experiment(tmp_path / "experiment", runs)


def _cells(folder: Path, kind: str) -> list[dict[str, Any]]:
    _, outcomes = read_outcomes(ExperimentFolder(folder))
    tables = json.loads(json_text(TABLES[kind].make(outcomes)))  # type: ignore[index]
    return [cell for table in tables for cell in table["cells"]]


def test_decoder_is_selected_by_the_mean_over_seeds(main_folder: Path) -> None:
    cells = _cells(main_folder, "main")
    f1 = {cell["system"]: cell for cell in cells if cell["metric"] == "f1" and "minus" not in cell}
    assert f1["diffusion-mf"]["decoder"] == "mask-viterbi"
    assert f1["diffusion-mf"]["mean"] == 87.5  # of 86, 87, 88, 89, not argmax's 99
    assert f1["diffusion-mf"]["deviation"] == pytest.approx(1.2909944)
    assert f1["diffusion-mf"]["paper_mean"] == 80.65
    assert f1["lcrf"]["mean"] == 85.25
    assert f1["unigram"]["seeds"] == [2]


def test_empty_cells_and_no_average_of_fewer_than_four_languages(main_folder: Path, tmp_path: Path) -> None:
    result = made_up_result(dev={"argmax": 95.0}, test={"argmax": 95.0}, task="pos", metric="accuracy")
    three = [
        ({"corpus": corpus, "system": "unigram", "seed": 1}, result) for corpus in ("en-ewt", "fr-gsd", "nl-lassysmall")
    ]
    folder = write_experiment(tmp_path / "three", three)
    averages = [cell for cell in _cells(folder, "main") if cell["corpus"] == "average"]
    assert [cell["mean"] for cell in averages] == [None]
    four = [*three, ({"corpus": "de-gsd", "system": "unigram", "seed": 1}, result)]
    averages = [
        cell for cell in _cells(write_experiment(tmp_path / "four", four), "main") if cell["corpus"] == "average"
    ]
    assert [cell["mean"] for cell in averages] == [95.0]


def test_paired_differences_and_significance(main_folder: Path) -> None:
    found = {cell["minus"]: cell for cell in _cells(main_folder, "main") if "minus" in cell}
    # 0, 2, 3, 4: mean 2.25, deviation √(8.75/3), t = 2.634 with three degrees of freedom.
    assert found["lcrf"]["mean"] == 2.25
    assert found["lcrf"]["deviation"] == pytest.approx(1.7078251)
    assert found["lcrf"]["p_value"] == pytest.approx(0.0780, abs=2e-4)
    assert found["unigram"]["p_value"] is None
    text = CliRunner().invoke(app, ["experiment", "table", str(main_folder)]).stdout
    assert "2.25 ± 1.71 (p = .078)" in text
    assert "An asterisk marks p < .05" in text
    assert "decoder selected by the mean dev score over seeds" in text
    assert "there is no test" in text
    assert "Not finished: conll2003 Unigram seed 1." in text
    assert "51.00 [1 of 2 seeds]" in text
    assert "**87.50 ± 1.29** <sub>80.65 ± .69</sub>" in text


def test_full_table_shows_every_decoder_on_both_splits(main_folder: Path) -> None:
    cells = [cell for cell in _cells(main_folder, "ner") if cell["metric"] == "f1" and cell["system"] == "diffusion-mf"]
    assert [(cell["split"], cell["decoder"], cell["mean"], cell["selected"], cell["paper_mean"]) for cell in cells] == [
        ("dev", "argmax", 78.0, False, 86.70),
        ("dev", "mask-viterbi", 81.0, True, 86.97),
        ("test", "argmax", 99.0, False, 80.51),
        ("test", "mask-viterbi", 87.5, True, 80.65),
    ]
    assert (
        "| Diffusion-MF | M-Vit.† |"
        in CliRunner().invoke(app, ["experiment", "table", str(main_folder), "--kind", "ner"]).stdout
    )


def test_exact_match_is_in_tables_and_rows(tmp_path: Path) -> None:
    scores = {"argmax": 70.0, "mask-viterbi": 80.0}
    by_calls = {f"calls={n}": {"dev": scores, "test": scores} for n in (5, 10)}
    runs = [_ner("diffusion-mf", seed, scores, scores, schedules=by_calls, exact_match=50.0 + seed) for seed in (1, 3)]
    folder = write_experiment(tmp_path / "x", runs)
    for kind, num_cells in (("main", 2), ("ner", 4), ("calls", 4)):
        cells = [cell for cell in _cells(folder, kind) if cell["metric"] == "exact_match" and cell["mean"] is not None]
        assert len(cells) == num_cells, kind
        assert {cell["mean"] for cell in cells} == {52.0}
    for experiment in ("main", "calls"):
        save_rows(tmp_path / "rows.json", read_outcomes(ExperimentFolder(folder))[1], experiment=experiment)
    rows = read_rows(tmp_path / "rows.json")
    assert {row["setting"] for row in rows} == {None, "calls=5", "calls=10"}
    deviation = pytest.approx(2**0.5)
    expected = {"dev_mean": 52.0, "dev_sd": deviation, "test_mean": 52.0, "test_sd": deviation}
    assert all(row["metrics"]["exact_match"] == expected for row in rows)


def test_readings_are_compared_on_dev(tmp_path: Path) -> None:
    scores = {"argmax": 70.0, "mask-viterbi": 80.0}
    names = [f"posterior={reading} calls={calls}" for reading in ("product", "mixture") for calls in (1, 10)]
    runs = []
    for seed in (1, 2):
        schedules = {name: {"dev": {"mask-viterbi": place + seed}} for place, name in enumerate(names)}
        coordinates, result = _ner("diffusion-mf", seed, scores, scores, schedules=schedules)
        for name in names:
            result["schedules"][name]["dev"]["mask-viterbi"] |= {"negative_log_likelihood": 0.125 * seed}
        runs.append((coordinates, result))
    runs.append(_ner("diffusion-mf", 3, scores, scores))  # whose model was not kept
    folder = write_experiment(tmp_path / "x", runs, table="readings")
    cells = _cells(folder, "readings")
    assert {cell["setting"]: cell["mean"] for cell in cells if cell["metric"] == "f1"} == {
        name: place + 1.5 for place, name in enumerate(names)
    }
    text = CliRunner().invoke(app, ["experiment", "table", str(folder)]).stdout
    assert "| mixture | calls=10 | 4.50 ± .71 [2 of 3 seeds] |" in text
    assert ".1875 ± .0884" in text
    save_rows(tmp_path / "rows.json", read_outcomes(ExperimentFolder(folder))[1], experiment="readings")
    rows = [row for row in read_rows(tmp_path / "rows.json") if row["decoder"] == "mask-viterbi"]
    assert [row["setting"] for row in rows] == sorted(names)
    assert rows[0]["metrics"]["negative_log_likelihood"]["dev_mean"] == 0.1875
    assert rows[0]["seeds"] == [1, 2]


def test_what_was_only_compared_is_recorded_and_never_selected(tmp_path: Path) -> None:
    runs = []
    for seed in (1, 2):
        coordinates, result = _ner("diffusionsl", seed, {"native": 70.0}, {"native": 71.0})
        result["compared"] = {"dev": {"argmax": {"f1": 90.0}}, "test": {"argmax": {"f1": 91.0 + seed}}}
        runs.append((coordinates, result))
    folder = write_experiment(tmp_path / "x", runs)
    save_rows(tmp_path / "rows.json", read_outcomes(ExperimentFolder(folder))[1], experiment="main")
    rows = read_rows(tmp_path / "rows.json")
    assert [(row["decoder"], row["selected"], row["dev_mean"], row["test_mean"]) for row in rows] == [
        ("native", True, 70.0, 71.0),
        ("argmax", False, 90.0, 92.5),
    ]
    assert rows[1]["metrics"]["f1"]["test_mean"] == 92.5
    cells = [cell for cell in _cells(folder, "ner") if cell["metric"] == "f1" and cell["split"] == "test"]
    assert {cell["decoder"]: cell["mean"] for cell in cells if cell["mean"] is not None} == {
        "native": 71.0,
        "argmax": 92.5,
    }


def test_the_plan_names_the_file_of_its_rows(tmp_path: Path) -> None:
    scores = {"argmax": 90.0}
    schedules = {f"base={base}": {"dev": scores} for base in (2, 4)}
    runs = [
        ({"corpus": "en-ewt", "system": "diffusion-uni", "encoder": "mpnet", "seed": 1},
         made_up_result(dev=scores, test=scores, metric="accuracy", task="pos", schedules=schedules)),
        ({"corpus": "en-ewt", "system": "unigram", "encoder": "mpnet", "seed": 1},
         made_up_result(dev=scores, test=scores, metric="accuracy", task="pos", is_diffusion=False)),
    ]  # fmt: skip
    folder = write_experiment(tmp_path / "x", runs, table="base")
    missing = CliRunner().invoke(app, ["experiment", "record", str(folder)])
    assert "names no result file" in str(missing.exception)
    other = tmp_path / "other.json"
    assert CliRunner().invoke(app, ["experiment", "record", str(folder), "--output", str(other)]).exit_code == 0
    assert len(read_rows(other)) == 3
    record = tmp_path / "x/plans/made-up.json"
    path = tmp_path / "sweeps.json"
    for configs in ("configs/x", "configs/ours"):
        record.write_text(json.dumps(json.loads(record.read_text()) | {"record": str(path)}))
        for result_path in (tmp_path / "x/runs").glob("*/result.json"):
            result = json.loads(result_path.read_text()) | {"configuration": f"{configs}/a.toml --set b=1"}
            result_path.write_text(json.dumps(result))
        for _ in range(2):
            assert CliRunner().invoke(app, ["experiment", "record", str(folder)]).exit_code == 0
    # Our sweeps and the paper's stand side by side; the same sweep replaces itself. Direct systems have no base.
    assert [(row["experiment"], row["configs"], row["system"], row["setting"]) for row in read_rows(path)] == [
        ("base", configs, system, setting)
        for configs in ("configs/x", "configs/ours")
        for system, setting in (("diffusion-uni", "base=2"), ("diffusion-uni", "base=4"), ("unigram", None))
    ]


def test_scores_of_the_papers_encoder_stand_beside_pretrained_ones_only(tmp_path: Path) -> None:
    scores = {"argmax": 90.0}
    schedules = {"base=2": {"dev": scores}}
    result = made_up_result(dev=scores, test=scores, metric="accuracy", task="pos", schedules=schedules)
    runs = [
        ({"corpus": "en-ewt", "system": "diffusion-mf", "encoder": encoder, "seed": 1}, result)
        for encoder in ("scratch", "mpnet")
    ]
    cells = _cells(write_experiment(tmp_path / "x", runs, table="base"), "base")
    assert {cell["encoder"]: cell["paper_mean"] for cell in cells if cell["setting"] == "2"} == {
        "scratch": None,
        "mpnet": 98.46,
    }


def test_objective_ablation(tmp_path: Path) -> None:
    runs = []
    for seed in (1, 2, 3):
        for variant, test in (("full", 81.0 + seed), ("no-denoising", 80.0), ("no-posterior", 81.0 + 2 * seed)):
            # Argmax would be selected on dev; the ablation uses Mask-Viterbi all the same.
            dev = {"argmax": 90.0, "mask-viterbi": 80.0}
            runs.append(_ner("diffusion-mf", seed, dev, {"argmax": 0.0, "mask-viterbi": test}, variant=variant))
    cells = _cells(write_experiment(tmp_path / "x", runs, table="objective"), "objective")
    scores = {
        c["setting"]: (c["mean"], c["paper_mean"]) for c in cells if c["split"] == "test" and "reference" not in c
    }
    assert scores == {"full": (83.0, 80.92), "no-denoising": (80.0, 79.69), "no-posterior": (85.0, 80.56)}
    differences = {
        c["setting"]: (c["mean"], c["deviation"], c["paper_mean"])
        for c in cells
        if c["split"] == "test" and "reference" in c
    }
    assert differences == {"no-denoising": (3.0, 1.0, 1.23), "no-posterior": (-2.0, 1.0, 0.36)}


def test_variants_of_each_system_are_compared_with_the_first(tmp_path: Path) -> None:
    runs = []
    for system, variants in (("unigram", ("alone", "flag")), ("diffusion-mf", ("alone", "beliefs"))):
        for seed, (number, variant) in itertools.product((1, 2), enumerate(variants)):
            scores = {"mask-viterbi": 80.0 + number * seed}
            runs.append(_ner(system, seed, scores, scores, variant=variant))
    folder = write_experiment(tmp_path / "x", runs, table="variants")
    cells = [cell for cell in _cells(folder, "variants") if cell["split"] == "test"]
    scores = {(c["system"], c["setting"]): c["mean"] for c in cells if "reference" not in c}
    assert scores == {
        ("unigram", "alone"): 80.0, ("unigram", "flag"): 81.5,
        ("diffusion-mf", "alone"): 80.0, ("diffusion-mf", "beliefs"): 81.5,
    }  # fmt: skip
    assert all(cell["paper_mean"] is None for cell in cells)
    differences = {(c["system"], c["setting"]): c["mean"] for c in cells if "reference" in c}
    assert differences == {("unigram", "flag"): 1.5, ("diffusion-mf", "beliefs"): 1.5}
    save_rows(tmp_path / "rows.json", read_outcomes(ExperimentFolder(folder))[1], experiment="variants")
    found = {(row["system"], row["setting"], row["variant"]) for row in read_rows(tmp_path / "rows.json")}
    assert found == {(system, variant, variant) for system, variant in scores}


def test_calls_ablation_compares_the_same_checkpoint(tmp_path: Path) -> None:
    runs = []
    for seed in (1, 2):
        schedules = {f"calls={n}": {"test": {"mask-viterbi": 80.0 + n * seed}} for n in (5, 10, 20)}
        dev = {"argmax": 1.0, "mask-viterbi": 2.0}
        runs.append(_ner("diffusion-mf", seed, dev, dev, schedules=schedules))
    cells = _cells(write_experiment(tmp_path / "x", runs, table="calls"), "calls")
    test = [cell for cell in cells if cell["split"] == "test"]
    assert [(c["setting"], c["mean"]) for c in test if "reference" not in c] == [
        ("5", 87.5),
        ("10", 95.0),
        ("20", 110.0),
    ]
    assert [(c["setting"], c["mean"]) for c in test if "reference" in c] == [("5", -7.5), ("20", 15.0)]


def test_sweeps_have_a_column_per_setting(tmp_path: Path) -> None:
    def run(system: str, variant: str, score: float) -> tuple[Any, Any]:
        place = {"corpus": "en-ewt", "system": system, "seed": 1, "variant": variant}
        result = made_up_result(dev={"argmax": score}, test={"argmax": 0.0}, task="pos", metric="accuracy")
        return place, result | {"sentences_per_second": score}

    scaling = write_experiment(
        tmp_path / "a", [run("diffusion-mf", f"size={s}", v) for s, v in (("L", 2.0), ("S", 1.0))]
    )
    found = [(cell["setting"], cell["mean"], cell["paper_mean"]) for cell in _cells(scaling, "scaling")]
    assert found == [("S", 1.0, 94.45), ("L", 2.0, 94.72)]
    depth = write_experiment(tmp_path / "b", [run("diffusion-mf", f"layers={n}", n) for n in (12, 2)])
    assert [(c["setting"], c["paper_mean"]) for c in _cells(depth, "depth")] == [("2", 94.78), ("12", 94.93)]
    iterations = write_experiment(tmp_path / "c", [run("mean-field", f"num_iterations={n}", 100.0 / n) for n in (1, 2)])
    speeds = [(c["mean"], c["paper_mean"]) for c in _cells(iterations, "iterations") if c["metric"] == "speed"]
    assert speeds == [(100.0, 100.0), (50.0, 99.4)]


def test_settings_are_selected_by_dev_not_test(tmp_path: Path) -> None:
    runs = []
    for seed in (1, 2):
        runs.append(_ner("lcrf", seed, {"viterbi": 90.0}, {"viterbi": 80.0}, variant="a"))
        runs.append(_ner("lcrf", seed, {"viterbi": 89.0}, {"viterbi": 95.0}, variant="b"))
    # Better still, but with one seed only.
    runs.append(_ner("lcrf", 1, {"viterbi": 99.0}, {"viterbi": 99.0}, variant="c"))
    cells = [cell for cell in _cells(write_experiment(tmp_path / "x", runs), "main") if cell["metric"] == "f1"]
    assert [cell["mean"] for cell in cells if cell["system"] == "lcrf"] == [80.0]


def test_new_selection_replaces_the_rows_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "scratch.json"
    for number, scores in enumerate([(90.0, 80.0), (70.0, 80.0)]):
        runs = [_ner("lcrf", 1, {"viterbi": s}, {"viterbi": s}, variant=v) for v, s in zip("ab", scores, strict=True)]
        _, outcomes = read_outcomes(ExperimentFolder(write_experiment(tmp_path / str(number), runs)))
        save_rows(path, outcomes, experiment="main")
    assert [(row["variant"], row["test_mean"]) for row in read_rows(path)] == [("b", 80.0)]
    _, outcomes = read_outcomes(ExperimentFolder(tmp_path / "1"))
    save_rows(path, outcomes, experiment="objective")
    assert [(row["experiment"], row["setting"]) for row in read_rows(path)] == [
        ("main", None),
        ("objective", "a"),
        ("objective", "b"),
    ]


def test_formats(main_folder: Path, tmp_path: Path) -> None:
    _, outcomes = read_outcomes(ExperimentFolder(main_folder))
    tables = TABLES["main"].make(outcomes)
    text = latex(tables)
    assert "$\\mathbf{87.50{\\pm}1.29}$ {\\scriptsize($80.65{\\pm}.69$)}" in text
    assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == len(tables)
    assert text.count("{") == text.count("}")
    assert text.count("$") % 2 == 0
    rows = list(csv.DictReader(io.StringIO(comma_separated(tables))))
    assert [row["mean"] for row in rows if row["metric"] == "f1" and row["system"] == "lcrf"] == ["85.25"]
    target = tmp_path / "table.md"
    result = CliRunner().invoke(app, ["experiment", "table", str(main_folder), "--output", str(target)])
    assert result.exit_code == 0
    assert "| Diffusion-MF |" in target.read_text()


def test_rows_and_readme(main_folder: Path, tmp_path: Path) -> None:
    _, outcomes = read_outcomes(ExperimentFolder(main_folder))
    path = tmp_path / "results" / "scratch.json"
    assert save_rows(path, outcomes, experiment="main") == 4
    save_rows(path, outcomes, experiment="main")
    rows = {(row["system"], row["decoder"]): row for row in read_rows(path)}
    assert len(rows) == len(read_rows(path)) == 4
    row = rows["diffusion-mf", "mask-viterbi"]
    needed = "corpus system encoder decoder metric seeds dev_mean dev_sd test_mean test_sd selected config seconds"
    assert set(needed.split()) | {"command", "commit", "hardware", "versions", "date"} <= set(row)
    assert (row["dev_mean"], row["test_mean"], row["selected"], row["seeds"]) == (81.0, 87.5, True, [1, 2, 3, 4])
    assert not rows["diffusion-mf", "argmax"]["selected"]
    assert row["test_scores"] == {"1": 86.0, "2": 87.0, "3": 88.0, "4": 89.0}

    readme = tmp_path / "README.md"
    begin, end = marks("results")
    readme.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    results = path.parent
    assert update_readme(readme, results) == ["results"]
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| Diffusion-MF | – <sub>95.06</sub> | – <sub>97.39</sub> | **87.50 ± 1.29** <sub>80.65</sub> |" in text
    update_readme(readme, results)
    assert readme.read_text() == text
    assert "No runs" in results_table([], kind="scratch", source="rows.json")
    readme.write_text(f"{begin}\nwithout an end")
    with pytest.raises(InputError, match="markers of results are incomplete"):
        update_readme(readme, results)
    readme.write_text("no marks")
    with pytest.raises(InputError, match="markers of tables are missing"):
        update_readme(readme, results)
    readme.write_text("\n".join(marks("pretrained")))
    assert update_readme(readme, results) == ["pretrained"]


def _row(system: str, encoder: str, test_scores: list[float]) -> dict[str, Any]:
    return {
        "system": system,
        "corpus": "conll2003",
        "encoder": encoder,
        "selected": True,
        "experiment": "main",
        "test_mean": sum(test_scores) / len(test_scores),
        "test_sd": 0.5,
        "seeds": list(range(len(test_scores))),
        "hardware": "A card; its host",
    }


def test_note_on_the_papers_encoders() -> None:
    assert paper_note("scratch", ["conll2003"]) == paper_note("bert-large-cased", ["conll2003"]) == PAPER_NOTE
    assert paper_note("mine", ["my-corpus"]) == PAPER_NOTE
    note = paper_note("mine", ["en-ewt", "fr-gsd", "zh-gsdsimp"])
    assert note == "Small figures are the paper's, for encoders of its own: roberta-large, chinese-roberta-wwm-ext."


def test_pretrained_encoders_stand_beside_the_papers_own() -> None:
    rows = [_row("unigram", "small", [88.0, 89.0]), _row("lcrf", "small", [89.0, 90.0]), _row("lcrf", "scratch", [1.0])]
    text = results_table(rows, kind="pretrained", source="rows.json")
    assert "| test | CoNLL-2003 NER F1, small |" in text
    assert "| LCRF | **89.50 ± .50** <sub>92.11</sub> |" in text
    assert "the paper's scores with its own encoders (bert-large-cased)" in text
    assert "1.00" not in text
    # One system has a single run: none is called the best.
    assert "**" not in results_table([*rows[:1], _row("lcrf", "small", [90.0])], kind="pretrained", source="rows.json")


def test_the_table_of_the_readme_has_no_systems_that_see_documents(tmp_path: Path) -> None:
    rows = [_row("lcrf", "scratch", [88.0, 89.0]), _row("diffusion-mf", "scratch", [87.0, 88.0])]
    for name, content in (("scratch", rows), ("recall", [_row("diffusion-mf", "scratch", [90.0, 91.0])])):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    readme = tmp_path / "README.md"
    readme.write_text("\n".join(marks("results")))
    update_readme(readme, tmp_path)
    text = readme.read_text()
    assert "| Diffusion-MF | – <sub>95.06</sub> | – <sub>97.39</sub> | 87.50 ± .50 <sub>80.65</sub> |" in text
    assert "90.50" not in text
    assert "scratch.json` has every row" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kind", "mian"], "choose one of main"),
        (["--format", "xml"], "choose one of markdown"),
        (["--plan", "z"], "made-up"),
    ],
)
def test_unknown_choices_are_refused(main_folder: Path, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["experiment", "table", str(main_folder), *arguments])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)


def test_plots_of_made_up_results(main_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = ExperimentFolder(main_folder)
    for run in folder.plan_records()["made-up"]["runs"]:
        entries = [{"event": "evaluation", "epoch": epoch, "score": 10.0 * epoch} for epoch in (1, 2)]
        folder.run(run["name"]).log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    result = CliRunner().invoke(app, ["experiment", "plot", str(main_folder), "--output", str(tmp_path / "plots")])
    assert result.exit_code == 0, result.output
    assert [Path(line).name for line in result.stdout.split()] == ["learning-curves.png"]
    assert (tmp_path / "plots/learning-curves.png").stat().st_size > 1000


def test_plots_of_sweeps_and_analyses(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    analysis = {
        "lengths": [{"name": "1-10", "size": 50, "accuracy": 90.0}],
        "rarity": [{"name": "unseen", "size": 50, "accuracy": 60.0}],
        "ambiguity": [{"name": "1", "size": 50, "accuracy": 70.0}, {"name": "none", "size": 50, "accuracy": 80.0}],
        "invalid_by_decoder": {"argmax": 3.0},
        "calibration": {
            "bins": [{"size": 40, "score": 0.3, "accuracy": 0.5}, {"size": 80, "score": 0.9, "accuracy": 0.8}]
        },
    }
    runs = []
    for variant in ("size=S", "size=XL", "layers=1", "layers=12", "num_iterations=3"):
        schedules = {name: {"dev": {"argmax": 1.0}} for name in ("calls=5", "calls=10", "base=1.5")}
        place, result = _ner("diffusion-mf", 1, {"argmax": 2.0}, {"argmax": 2.0}, variant=variant, schedules=schedules)
        runs.append((place, {**result, "decoder": "argmax", "analysis": analysis}))
    folder = write_experiment(tmp_path / "x", runs)
    result = CliRunner().invoke(app, ["experiment", "plot", str(folder), "--format", "svg"])
    assert result.exit_code == 0, result.output
    wanted = "base calibration calls depth errors-by-ambiguity errors-by-length errors-by-rarity invalid-spans iterations size"
    assert sorted(path.stem for path in (folder / "plots").glob("*.svg")) == wanted.split()


def test_plots_of_variants_and_of_exact_match(tmp_path: Path) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    schedules = {
        f"posterior={reading} calls={calls}": {"dev": {"argmax": 1.0}}
        for reading in ("product", "mixture")
        for calls in (10, 2)
    }
    runs = []
    for variant, score in (("rotary", 80.0), ("none", 70.0)):
        for seed in (1, 2):
            scores = {"argmax": score + seed}
            place, result = _ner("diffusion-mf", seed, scores, scores, variant=variant, schedules=schedules)
            for name, schedule in result["schedules"].items():
                schedule["dev"]["argmax"]["exact_match"] = float(name.rpartition("=")[2]) + 10 * ("mixture" in name)
            runs.append((place, result))
    _, outcomes = read_outcomes(ExperimentFolder(write_experiment(tmp_path / "x", runs)))
    axes = figure.add_subplot()
    assert draw_variants(axes, outcomes, "conll2003", has_paper=True)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Diffusion-MF, rotary", "Diffusion-MF, none"]
    points = {(*map(float, line.get_xdata()), *map(float, line.get_ydata())) for line in axes.get_lines()}
    assert {(81.5, 0.0), (71.5, 1.0), (80.65, 0.0), (80.65, 1.0)} <= points
    axes = figure.add_subplot()
    assert draw_exact_match(axes, outcomes, "conll2003")
    (line,) = axes.get_lines()
    assert [*zip(line.get_xdata(), line.get_ydata(), strict=True)] == [(2, 2), (10, 10)]


def test_runs_without_a_result_are_named_with_the_reason(tmp_path: Path) -> None:
    runs = [
        _ner("lcrf", 1, {"viterbi": 80.0}, {"viterbi": 80.0}, is_diffusion=False),
        *(({"corpus": "conll2003", "system": "unigram", "seed": seed}, None) for seed in (1, 2)),
        ({"corpus": "conll2003", "system": "diffusion-mf", "seed": 1}, None),
        ({"corpus": "conll2003", "system": "mean-field", "seed": 3}, None),
    ]
    folder = ExperimentFolder(write_experiment(tmp_path / "x", runs))
    folder.run("run1").add_attempt(Outcome.DIVERGED)
    folder.run("run2").add_attempt(Outcome.DIVERGED)
    folder.run("run3").add_attempt(Outcome.REFUSED)
    _, outcomes = read_outcomes(folder)
    text = markdown(TABLES["main"].make(outcomes))
    assert "Diverged: conll2003 Unigram seeds 1, 2.\n" in text
    assert "Failed: conll2003 Diffusion-MF seed 1.\n" in text
    assert "Not finished: conll2003 Mean-Field seed 3.\n" in text


@pytest.mark.parametrize(
    "kind", ["objective", "variants", "calls", "seg-pos", "scaling", "depth", "iterations", "base"]
)
def test_a_kind_that_the_plan_has_nothing_for(main_folder: Path, kind: str) -> None:
    result = CliRunner().invoke(app, ["experiment", "table", str(main_folder), "--kind", kind])
    assert isinstance(result.exception, InputError)
    assert f"the plan made-up has no finished runs for the table '{kind}'; that table needs" in str(result.exception)


def test_sweeps_select_the_other_settings_of_the_grid_by_dev(tmp_path: Path) -> None:
    scores = {"rate=1 layers=2": 70.0, "rate=2 layers=2": 90.0, "rate=3 layers=2": 80.0}
    runs = [_ner("diffusion-mf", 1, {"argmax": score}, {"argmax": 0.0}, variant=v) for v, score in scores.items()]
    found = _cells(write_experiment(tmp_path / "x", runs), "depth")
    assert [(cell["setting"], cell["mean"], cell["variant"]) for cell in found] == [("2", 90.0, "rate=2 layers=2")]


def test_learning_curves_are_means_over_finished_runs(tmp_path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    runs = [_ner("lcrf", seed, {"viterbi": 80.0}, {"viterbi": 80.0}, is_diffusion=False) for seed in (1, 2)]
    folder = ExperimentFolder(
        write_experiment(tmp_path / "x", [*runs, ({"corpus": "conll2003", "system": "lcrf", "seed": 3}, None)])
    )
    for number, epochs in enumerate((range(1, 11), range(1, 11), range(1, 1))):
        entries = [{"event": "evaluation", "epoch": epoch, "score": 10.0 * (epoch + number)} for epoch in epochs]
        folder.run(f"run{number}").log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    record, outcomes = read_outcomes(folder)
    figure, axes = pyplot.subplots()
    draw_learning_curves(axes, read_logs(folder, record), outcomes, "conll2003")
    (line,) = [line for line in axes.lines if line.get_label() == "LCRF"]
    assert list(line.get_xdata()) == list(range(1, 11))  # the third seed has not begun
    assert list(line.get_ydata()) == [10.0 * epoch + 5.0 for epoch in range(1, 11)]
    assert axes.get_ylim()[0] > 20.0  # the steep beginning is left out
    pyplot.close(figure)


def test_small_groups_are_not_plotted() -> None:
    rows = [{"size": 400, "score": 0.9, "accuracy": 0.8}, {"size": 1, "score": 0.1, "accuracy": 1.0}]
    assert calibration_points([{"calibration": {"bins": rows}}]) == [(0.9, 0.8)]
    lengths = [{"name": "1-10", "size": 400, "accuracy": 90.0}, {"name": "61+", "size": 3, "accuracy": 0.0}]
    assert error_rates([{"lengths": lengths}], "lengths") == {"1-10": 10.0}
