"""Every number of the README's and the documents' tables of results, computed again from ``results/*.json``."""

from __future__ import annotations

import functools
import itertools
import pathlib
import re
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from scipy import stats

from diffusion_mf.data.corpus import Task
from diffusion_mf.evaluation import PRIMARY_METRICS
from diffusion_mf.evaluation.metrics import half_up
from diffusion_mf.lab.experiments.paper import ablation_decoder, paper_relative_throughput, paper_score
from diffusion_mf.lab.experiments.record import results_table
from diffusion_mf.lab.experiments.selection import paired_difference
from diffusion_mf.lab.experiments.tables import system_title
from diffusion_mf.lab.results import read_rows
from diffusion_mf.model.storage import read_config, read_metrics
from diffusion_mf.systems import SYSTEMS
from diffusion_mf.tagger.shipped import shipped_models

ROOT = pathlib.Path(__file__).parent.parent
SYSTEM_OF_TITLE = {system_title(name): name for name in SYSTEMS}
CORPUS_OF_TITLE = {"EN-EWT": "en-ewt", "FR-GSD": "fr-gsd", "CoNLL-2003": "conll2003", "ZH-GSDSimp": "zh-gsdsimp"}
TASKS = {"en-ewt": Task.POS, "conll2003": Task.NER, "zh-gsdsimp": Task.SEG_POS}

Row = dict[str, Any]


class MarkdownTable(NamedTuple):
    """A table of a document: its cells without emphasis."""

    document: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def name(self) -> str:
        """Where it stands, for messages."""
        return f"{self.document}: {' | '.join(self.header)}"


@functools.cache
def rows_of(name: str) -> list[Row]:
    return read_rows(ROOT / "results" / f"{name}.json")


def matching(name: str, **wanted: Any) -> list[Row]:
    """The rows of a result file with these values."""
    return [row for row in rows_of(name) if all(row.get(key) == value for key, value in wanted.items())]


def one(name: str, **wanted: Any) -> Row:
    """The only row of a result file with these values."""
    found = matching(name, **wanted)
    assert len(found) == 1, f"results/{name}.json has {len(found)} rows with {wanted}"
    return found[0]


def markdown_tables(text: str, document: str) -> list[MarkdownTable]:
    found = []
    for block in re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE):
        lines = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.strip().splitlines()]
        plain = [tuple(re.sub(r"\*\*|</?sub>|`", "", cell) for cell in line) for line in lines]
        found.append(MarkdownTable(document, plain[0], tuple(plain[2:])))
    return found


def tables_of(document: str) -> list[MarkdownTable]:
    return markdown_tables((ROOT / document).read_text(encoding="utf-8"), document)


def grouped(value: float) -> str:
    """A whole number with commas."""
    return f"{int(half_up(value, 0)):,}"


def signed(value: float, digits: int) -> str:
    """A difference, with its sign."""
    return ("−" if value < 0 else "+") + half_up(abs(value), digits)


Expected = Callable[[MarkdownTable, tuple[str, ...]], list[str]]
"""the cells of a row, those of its heading included"""


def generated(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    """The tables of scores that a command writes."""
    kind = "pretrained" if "mpnet" in " ".join(table.header) else "scratch"
    text = results_table(rows_of(kind), kind=kind, source=f"results/{kind}.json")
    (expected,) = markdown_tables(text, table.document)
    assert expected.header == table.header
    assert [line[0] for line in expected.rows] == [line[0] for line in table.rows]
    return list(next(line for line in expected.rows if line[0] == row[0]))


def throughput(corpus: str, system: str, phase: str, implementation: str = "fast") -> Row:
    place = {"corpus": corpus, "system": system, "phase": phase, "implementation": implementation, "setting": None}
    return one("efficiency", benchmark="throughput", **place)


def speed_of_diffusion_mf(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    phase, task = row[0].split(", ")
    corpus = {"POS": "en-ewt", "NER": "conll2003", "Chinese": "zh-gsdsimp"}[task.split()[0]]
    fast, plain = (throughput(corpus, "diffusion-mf", phase, name) for name in ("fast", "plain eager"))
    return [
        row[0],
        half_up(fast["paper_sentences_per_second"], 1),
        grouped(fast["sentences_per_second"]),
        f"{half_up(fast['ratio_to_paper'], 0)}×",
        grouped(plain["sentences_per_second"]),
    ]


def speed_of_trained_models(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    corpus = "en-ewt" if row[0].startswith("POS") else "conll2003"
    place = {"benchmark": "throughput", "setting": "trained", "corpus": corpus, "num_calls": int(row[2])}
    found = one("efficiency", **place)
    assert (found["num_calls"] == found["chosen_calls"]) == row[0].endswith("selected")
    return [
        row[0],
        half_up(found["parameters"] / 1e6, 1),
        row[2],
        half_up(found["dev_score"], 2),
        half_up(found["dev_exact_match"], 1),
        grouped(found["sentences_per_second"]),
        f"{half_up(found['ratio_to_paper'], 0)}×",
    ]


PEERS = {"python-crfsuite": "python-crfsuite", "UDPipe 1": "udpipe-1", "spaCy": "spacy"}


def cpu_rows(tagger: str) -> list[Row]:
    """With one thread of PyTorch, and with two."""
    name = "cpu-student" if "student" in tagger else "cpu" if "Mean-Field" in tagger else ""
    name = name or next(system for title, system in PEERS.items() if tagger.startswith(title))
    return [one("cpu", system=name, pytorch_threads=threads) for threads in (1, 2)]


def on_a_cpu(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    with_one, with_two = cpu_rows(row[0])
    if len(table.header) == 3:
        return [row[0], half_up(with_one["accuracy"], 2), grouped(with_one["words_per_second"])]
    speeds = [
        f"{each['words_per_second']:,} ({each['slowest_pass']:,} – {each['fastest_pass']:,})"
        for each in (with_one, with_two)
    ]
    return [row[0], half_up(with_one["accuracy"], 2), *speeds]


def selected(name: str, system: str, corpus: str, encoder: str = "scratch") -> Row:
    wanted = {"experiment": "main", "system": system, "corpus": corpus, "encoder": encoder}
    return one(name, **wanted, selected=True)


def dev_of_four_seeds(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    system = SYSTEM_OF_TITLE[row[0]]
    corpora = [CORPUS_OF_TITLE[title] for title in table.header[1:]]
    return [row[0], *(half_up(selected("scratch", system, corpus)["dev_mean"], 2) for corpus in corpora)]


def dev_with_pretrained_encoders(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    cells = [row[0]]
    for title in table.header[1:]:
        corpus, encoder = CORPUS_OF_TITLE[title.split(",")[0].split()[0]], title.rpartition(", ")[2]
        found = selected("pretrained", SYSTEM_OF_TITLE[row[0]], corpus, encoder)
        cells.append(f"{half_up(found['dev_mean'], 2)} ± {half_up(found['dev_sd'], 2)}")
    return cells


def invalid_sentences(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    cells = [row[0]]
    for place, title in enumerate(table.header[1:]):
        wanted = {"experiment": "main", "corpus": CORPUS_OF_TITLE[row[0]], "system": SYSTEM_OF_TITLE[title]}
        rates = one("scratch", **wanted, decoder="argmax")["invalid_sentences"].values()
        runs = f" ({len(rates)} runs)" if place == 0 and "runs" in row[1] else f" ({len(rates)})"
        cells.append(half_up(statistics.fmean(rates), 1) + runs)
    return cells


OBJECTIVES = {"L_den + L_post": "full", "− L_den": "no-denoising", "− L_post": "no-posterior"}


def objectives(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    cells = [row[0]]
    for title in table.header[1:]:
        corpus = CORPUS_OF_TITLE[title]
        setting = OBJECTIVES.get(row[0], "own-trajectory")
        decoder = ablation_decoder(TASKS[corpus])
        found = one("scratch", experiment="objective", corpus=corpus, setting=setting, decoder=decoder)
        cells.append(f"{half_up(found['test_mean'], 2)} ({half_up(found['dev_mean'], 2)})")
    return cells


def with_recall(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    found = [selected("recall", SYSTEM_OF_TITLE[row[0].split(",")[0]], corpus) for corpus in ("conll2003", "en-ewt")]
    assert {each["variant"] for each in found} == {"documents" if "recall" in row[0] else "sentences"}
    return [row[0], *(half_up(each[split], 2) for each in found for split in ("dev_mean", "test_mean"))]


def operations(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    shape = [int(number) for number in row[1].split(" × ")]
    direction = "forward" if row[0] == "viterbi" else "both"
    found = [
        each
        for each in rows_of("ops")
        if (each["op"], each["shape"], each["transitions"], each["direction"]) == (row[0], shape, "global", direction)
        and each["device"] != "cpu"
    ]
    peer = min(each["milliseconds"] for each in found if each["library"] != "diffusion_mf")
    ours = {each["mode"]: each for each in found if each["library"] == "diffusion_mf"}
    times = [
        f"{half_up(ours[mode]['milliseconds'], 3)} ({half_up(ours[mode]['speedup_over_fastest_peer'], 0)}×)"
        for mode in ("eager", "graph")
    ]
    return [*row[:2], half_up(peer, 1), *times]


def milliseconds(found: list[Row]) -> dict[str, str]:
    """The time of each library, as tables show it."""
    return {each["library"]: half_up(each["milliseconds"], 2 if each["milliseconds"] < 10 else 1) for each in found}


def crf_on_a_gpu(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    shape = [int(number) for number in row[1].split(" × ")]
    place = {"op": row[0], "shape": shape, "transitions": "global", "mode": "eager", "device": "cuda"}
    place["direction"] = "forward" if row[0] == "viterbi" else "both"
    found = [each for each in rows_of("ops") if all(each.get(key) == value for key, value in place.items())]
    times = milliseconds(found)
    ratio = one("ops", **place, library="diffusion_mf")["speedup_over_fastest_peer"]
    peers = [times.get(library, "–") for library in ("pytorch-crf", "torch-struct")]
    return [*row[:2], *peers, f"{times['diffusion_mf']} ({half_up(ratio, 0)}×)"]


def crf_on_a_cpu(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    shape = [int(number) for number in row[1].split(" × ")]
    found = [each for each in rows_of("crf_layers") if (each["op"], each["shape"]) == (row[0], shape)]
    ours = next(each["milliseconds"] for each in found if each["library"] == "diffusion_mf")
    ratio = min(each["milliseconds"] for each in found if each["library"] != "diffusion_mf") / ours
    times = milliseconds(found)
    peers = [times.get(library, "–") for library in table.header[2:5]]
    return [*row[:2], *peers, f"{times['diffusion_mf']} ({half_up(ratio, 0 if ratio >= 10 else 1)}×)"]


def throughput_of_denoisers(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    phase, corpus = row[:2]
    uni, mean_field, chain = (
        throughput(corpus, system, phase) for system in ("diffusion-uni", "diffusion-mf", "diffusion-lcrf")
    )

    def shown(found: Row) -> str:
        return f"{grouped(found['sentences_per_second'])} ({half_up(found['ratio_to_paper'], 0)}×)"

    speeds = [found["sentences_per_second"] for found in (uni, mean_field, chain)]
    plain = throughput(corpus, "diffusion-mf", phase, "plain eager")
    return [
        *(phase, corpus, shown(uni), shown(mean_field), shown(chain)),
        *(half_up(speeds[1] / speeds[0], 3), half_up(speeds[2] / speeds[0], 3)),
        *(half_up(100 * mean_field["utilisation"], 1), grouped(plain["sentences_per_second"])),
    ]


def little_data(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    """Means over seeds, and the differences to python-crfsuite on the same samples; an asterisk marks those significantly below."""
    place = {"corpus": row[0], "sentences": int(row[1].replace(",", ""))}
    place["device"] = "cuda" if "a GPU" in table.header[0] else "cpu"
    here = [
        one("sizes", experiment="significance", system=SYSTEM_OF_TITLE[title], **place) for title in table.header[3:]
    ]
    seeds = [str(len(found["seeds"])) for found in here]

    def shown(found: Row) -> str:
        star = " *" if found["is_below"] else ""
        return f"{half_up(found['test'], 2)} ({signed(found['difference'], 2)}{star})"

    return [*row[:2], seeds[0] if len(set(seeds)) == 1 else ", ".join(seeds), *map(shown, here)]


def scores_by_seed(score: str, **place: Any) -> dict[int, float]:
    """The scores of a system on a sample, or on the whole of a corpus."""
    found = matching("sizes", **place)
    assert len({row["seed"] for row in found}) == len(found) > 0, place
    return {row["seed"]: row[score] for row in found}


def few_sentences(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    """Means over seeds, and the differences to python-crfsuite with the same ones; there are no tests below 500 sentences."""
    place = {"experiment": "sizes", "corpus": row[0], "sentences": int(row[1])}
    base = scores_by_seed("test", system="python-crfsuite", **place)
    cells = []
    for title in table.header[3:]:
        scores = scores_by_seed("test", system=SYSTEM_OF_TITLE[title], device="cuda", **place)
        assert str(len(scores)) == row[2]
        mean = statistics.fmean(scores.values())
        cells.append(f"{half_up(mean, 2)} ({signed(mean - statistics.fmean(base[seed] for seed in scores), 2)})")
    return [*row[:3], *cells]


def nothing_lost(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    """Dev means of whole corpora, their differences to our recipe's, and two standard errors of these: no mean falls by more."""
    place = {"experiment": "sizes", "corpus": row[0], "size": "all", "device": "cuda"}
    cells = [row[0]]
    for title in table.header[1:]:
        system = SYSTEM_OF_TITLE[title]
        here = list(scores_by_seed("dev", system=system, **place).values())
        before = list(selected("scratch", system, row[0])["dev_scores"].values())
        assert len(here) == len(before) == 4
        limit = 2 * (statistics.variance(here) / 4 + statistics.variance(before) / 4) ** 0.5
        difference = statistics.fmean(here) - statistics.fmean(before)
        assert difference >= -limit
        cells.append(f"{half_up(statistics.fmean(here), 2)} ({signed(difference, 3)}, {half_up(limit, 3)})")
    return cells


def bases(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    cells = [row[0]]
    for title in table.header[1:]:
        base, calls = re.fullmatch(r"([\d.]+) \((\d+)\)", title).groups()  # type: ignore[union-attr]
        place = {"system": SYSTEM_OF_TITLE[row[0]], "setting": float(base), "num_calls": int(calls)}
        cells.append(grouped(one("efficiency", benchmark="schedule", **place)["sentences_per_second"]))
    return cells


def runs_at_a_time(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    implementation = "fast, MPS" if "service" in row[0] else "fast"
    cells = [row[0]]
    for title in table.header[1:]:
        wanted = {"benchmark": "sharing", "implementation": implementation, "setting": int(title)}
        found = [each for each in rows_of("efficiency") if all(each.get(key) == wanted[key] for key in wanted)]
        cells.append(grouped(found[0]["sentences_per_second"]) if found else "–")
    return cells


def more_data(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    cells = [row[0]]
    for title in table.header[1:]:
        setting = f"{title.split('×')[0]}× data"
        found = one("efficiency", benchmark="scaling", phase=row[0], setting=setting)
        relative = "" if setting == "1× data" else f" ({half_up(found['relative'], 3)})"
        cells.append(grouped(found["sentences_per_second"]) + relative)
    return cells


def longer_sentences(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    cells = [row[0]]
    for title in table.header[1:]:
        found = one("efficiency", benchmark="scaling", setting=f"{int(title.replace(',', ''))} units")
        if row[0].startswith("micro"):
            cells.append(half_up(found["microseconds_per_unit"], 1))
        else:
            value = found["milliseconds_per_sentence"]
            cells.append(half_up(value, 3 if value < 1 else 2 if value < 10 else 1))
    return cells


def fifteen_iterations(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    cells = [row[0]]
    system = SYSTEM_OF_TITLE[row[0]]
    for phase in ("training", "inference"):
        found = one("efficiency", benchmark="mean-field", system=system, phase=phase, setting=15)
        published = paper_relative_throughput(system, "15", phase=phase)
        assert published is not None
        word = "paper: " if (row[0], phase) == ("Mean-Field", "training") else ""
        cells.append(f"{half_up(100 * found['relative'], 1)} ({word}{published.mean})")
    return cells


def kernel_families(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    def more(family: str, system: str) -> list[str]:
        place = {"phase": row[0], "corpus": row[1], "without": family, "system": system}
        found = [each for each in rows_of("kernel_families") if all(each[key] == place[key] for key in place)]
        per_cent = [100 * (each["times_all_families"] - 1) for each in found]
        return [("+" if value > 0 else "−") + half_up(abs(value), 1) for value in per_cent]

    cells = [more(family, "diffusion-mf") + more(family, "mean-field") for family in table.header[2:]]
    return [*row[:2], *(", ".join(each) or "–" for each in cells)]


def under_the_papers_settings(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    cells = [row[0]]
    for heading in table.header[1:]:
        place = {"experiment": "main", "corpus": CORPUS_OF_TITLE[heading.split()[0]], "selected": True}
        found = one("paper", system=SYSTEM_OF_TITLE[row[0]], **place)
        exact_match = half_up(found["metrics"]["exact_match"]["test_mean"], 2)
        published = paper_score(found["corpus"], found["system"], "scratch", found["metric"])
        assert published is not None
        score = half_up(found["test_mean"], 2)
        if len(found["seeds"]) > 1:
            score += f" ± {half_up(found['test_sd'], 2).lstrip('0')}"
            exact_match += f"; {len(found['seeds'])}"
        cells.append(f"{score} ({exact_match}) {half_up(published.mean, 2)}")
    return cells


def minus_other_systems(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    """Diffusion-MF minus another system on test, with its 95 % interval, and beside it the paper's difference."""
    has_our_recipe = table.header[0].startswith("our recipe")
    cells = [row[0]]
    for corpus in (CORPUS_OF_TITLE[title] for title in table.header[1:]):
        name_of_file = "scratch" if has_our_recipe else "paper"
        pair = [selected(name_of_file, name, corpus) for name in ("diffusion-mf", SYSTEM_OF_TITLE[row[0]])]
        scores = [{int(seed): score for seed, score in each["test_scores"].items()} for each in pair]
        published = [paper_score(corpus, each["system"], "scratch", each["metric"]) for each in pair]
        difference = paired_difference(*scores)
        assert difference is not None
        assert difference.deviation is not None
        seeds = len(difference.seeds)
        assert seeds == 4 or not has_our_recipe
        width = float(stats.t.ppf(0.975, seeds - 1)) * difference.deviation / seeds**0.5
        interval = " to ".join(signed(difference.mean + side * width, 2) for side in (-1, 1))
        shown = [*([interval] if seeds > 2 else []), *([] if has_our_recipe else [str(seeds)])]
        theirs, others = (value.mean if value is not None else 0.0 for value in published)
        cells.append(f"{signed(difference.mean, 2)} ({'; '.join(shown)}) {signed(theirs - others, 2)}")
    return cells


def exact_match_by_calls(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    title, decoder = row[0].split(", ")
    place = {"experiment": "readings", "corpus": CORPUS_OF_TITLE[title], "decoder": decoder.lower()}
    cells = [row[0]]
    for calls in table.header[1:]:
        found = one("scratch", setting=f"posterior=product calls={calls}", **place)
        exact_match = found["metrics"]["exact_match"]["dev_mean"]
        cells.append(f"{half_up(exact_match, 1)} ({half_up(found['dev_mean'], 2)})")
    return cells


def controls_of_recall(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    """Scores with the selected decoder, exact match with the one whose output is legal."""
    encoder = "granite" if "granite" in table.header[0] else "scratch"
    found = [
        each
        for each in rows_seeing_other_occurrences(*row[0].split(", "), encoder=encoder)
        if each["selected"] or each["decoder"] in ("viterbi", "mask-viterbi")
    ]
    (selected,) = (each for each in found if each["selected"])
    (legal,) = (each for each in found if each["decoder"] in ("viterbi", "mask-viterbi"))
    scores = (half_up(selected[f"{split}_mean"], 2) for split in ("dev", "test"))
    return [row[0], str(len(selected["seeds"])), *scores, half_up(legal["metrics"]["exact_match"]["test_mean"], 1)]


def rows_seeing_other_occurrences(title: str, variant: str, encoder: str = "scratch") -> list[Row]:
    """Those of a variant of the controls of recall, or of the models of the corrections."""
    place = {"corpus": "conll2003", "system": SYSTEM_OF_TITLE[title], "encoder": encoder}
    if variant.startswith("clamps"):
        return matching("correction-models", variant=variant, **place)
    return matching("recall", experiment="variants", setting=variant, **place)


def seeing(title: str, variant: str) -> Row:
    """The row of such a variant with the decoder that dev selects."""
    (found,) = (each for each in rows_seeing_other_occurrences(title, variant) if each["selected"])
    return found


def compared(first: Row, second: Row, split: str) -> tuple[str, str]:
    """The mean difference over four common seeds, and the p-value of a paired t-test."""
    pair = [{int(seed): score for seed, score in each[f"{split}_scores"].items()} for each in (first, second)]
    difference = paired_difference(*pair)
    assert difference is not None
    assert len(difference.seeds) == 4
    p = difference.p_value
    assert p is not None
    is_near_the_limit = half_up(p, 2) == "0.05"
    p_value = "< .001" if p < 0.001 else "= " + half_up(p, 3 if p < 0.01 or is_near_the_limit else 2).lstrip("0")
    return half_up(difference.mean, 2).replace("-", "−"), f"p {p_value}"


def with_documents(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    """A system that sees documents minus an LCRF that does, on both splits."""
    cells = [row[0]]
    for heading in table.header[1:]:
        other = seeing("LCRF", heading.rpartition(", ")[2])
        test, dev = (compared(seeing(*row[0].split(", ")), other, split) for split in ("test", "dev"))
        signs = ["" if each[0].startswith("−") else "+" for each in (test, dev)]
        cells.append(f"{signs[0]}{test[0]} ({test[1]}); dev {signs[1]}{dev[0]} ({dev[1]})")
    return cells


def without_positions(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    """Test scores of seed 1 without positions, in brackets those with them, and the paper's."""
    cells = [row[0]]
    for heading in table.header[1:]:
        place = {"experiment": "variants", "corpus": CORPUS_OF_TITLE[heading.split()[0]], "selected": True}
        found = {each["setting"]: each for each in matching("paper", system=SYSTEM_OF_TITLE[row[0]], **place)}
        rotary = found["rotary"]
        published = paper_score(rotary["corpus"], rotary["system"], "scratch", rotary["metric"])
        assert published is not None
        none, with_positions = (
            half_up(found[setting]["test_scores"]["1"], 2) if setting in found else "–"
            for setting in ("none", "rotary")
        )
        cells.append(f"{none} ({with_positions}) {half_up(published.mean, 2)}")
    return cells


def by_decoder(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    """Test scores with argmax and with Mask-Viterbi: the paper's, and those of seed 1 without positions and with them."""
    system, corpus = SYSTEM_OF_TITLE[row[0].split(", ")[0]], CORPUS_OF_TITLE[row[0].split(", ")[1]]
    pairs = []
    for setting in (None, "none", "rotary"):
        scores = []
        for decoder in ("argmax", "mask-viterbi"):
            place = {"experiment": "variants", "corpus": corpus, "system": system, "decoder": decoder}
            if setting is None:
                metric = one("paper", setting="rotary", **place)["metric"]
                published = paper_score(corpus, system, "scratch", metric, decoder=decoder)
                assert published is not None
                scores.append(published.mean)
            else:
                scores.append(one("paper", setting=setting, **place)["test_scores"]["1"])
        pairs.append(" / ".join(half_up(score, 2) for score in scores))
    return [row[0], *pairs]


def sweep(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    experiment, key = ("depth", "layers") if "layers" in table.header[0] else ("iterations", "num_iterations")
    place = {"experiment": experiment, "corpus": "en-ewt", "system": SYSTEM_OF_TITLE[row[0]], "selected": True}
    found = [one("sweeps", setting=f"{key}={value}", **place) for value in table.header[2:]]
    (seeds,) = {len(each["seeds"]) for each in found}
    return [row[0], str(seeds), *(half_up(each["dev_mean"], 2) for each in found)]


def by_base(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    """Dev and test of the same checkpoints with each base of the reverse schedule."""
    place = {"experiment": "base", "corpus": "en-ewt", "system": SYSTEM_OF_TITLE[row[0]], "encoder": "granite"}
    found = [one("sweeps", setting=f"base={head.split()[0]}", **place) for head in table.header[2:]]
    cells = [f"{half_up(each['dev_mean'], 2)} ({half_up(each['test_mean'], 2)})" for each in found]
    return [row[0], str(len(found[0]["seeds"])), *cells]


def exact_match_of_systems(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    cells = [row[0]]
    for title in table.header[1:]:
        place = {"experiment": "sizes", "corpus": CORPUS_OF_TITLE[title], "size": "all", "device": "cuda"}
        scores = list(scores_by_seed("exact_match", system=SYSTEM_OF_TITLE[row[0]], **place).values())
        assert len(scores) == 4
        cells.append(f"{half_up(statistics.fmean(scores), 1)} ± {half_up(statistics.stdev(scores), 1)}")
    return cells


def corrected_models(table: MarkdownTable, row: tuple[str, ...]) -> dict[str, Any]:
    """Which rows of correction.json a line is about."""
    title, *options = row[0].split(", ")
    recalled = [option.removeprefix("recall of ") for option in options if option.startswith("recall of ")]
    return {
        "corpus": CORPUS_OF_TITLE[table.header[0].split()[0]],
        "system": SYSTEM_OF_TITLE[title],
        "encoder": "scratch",
        "clamp_share": 0.5 * ("given labels" in options),
        "recall": recalled[0] if recalled else "nothing",
    }


def fixes_of(row: Row) -> str:
    return f"{half_up(row['fixes'], 1)} ({half_up(row['saved'], 1)} % fewer)"


def corrected(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    """Errors at the start, fixes in both orders, and the difference to LCRF in the first, with its interval."""
    place = {**corrected_models(table, row), "applied_to_all": False}
    orders = [one("correction", order=order, **place) for order in ("reading", "uncertain")]
    cells = [str(len(orders[0]["seeds"])), half_up(orders[0]["errors"], 1), *map(fixes_of, orders)]
    return [row[0], *cells, minus_lcrf(orders[0].get("minus_lcrf"))]


def applied_to_all(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    """In reading order, fixes of one occurrence and of all, and the difference of the better way to the best LCRF."""
    ways = matching("correction", order="reading", **corrected_models(table, row))
    found = {each["applied_to_all"]: each for each in ways}
    seeds = dict.fromkeys(str(len(found[way]["seeds"])) for way in sorted(found))
    fixes = [fixes_of(found[way]) if way in found else "–" for way in (False, True)]
    best = min(ways, key=lambda each: each["fixes"])
    difference = minus_lcrf(best.get("minus_best_lcrf"))
    return [row[0], ", ".join(seeds), half_up(found[False]["errors"], 1), *fixes, difference]


def minus_lcrf(difference: Row | None) -> str:
    """A difference to an LCRF in fixes, with its interval."""
    if not difference:
        return "–"
    return "{} ({} to {})".format(*(signed(difference[key], 1) for key in ("difference", "low", "high")))


def tokens_of_raw_text(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    found = [one("tokens", corpus=CORPUS_OF_TITLE[row[0]], split=split, tokenizer=row[1]) for split in ("dev", "test")]
    return [*row[:2], *(half_up(each[f"{name}_f1"], 2) for each in found for name in ("token", "word", "sentence"))]


def exported(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    title, encoder = row[0].split(", ")
    found = one("onnx", corpus="en-ewt", system=SYSTEM_OF_TITLE[title], encoder=encoder)
    speeds = (grouped(found[f"{library}_words_per_second"]) for library in ("pytorch", "onnx"))
    return [row[0], grouped(found["parameters"]), *speeds, f"{found['different_labels']} of {found['words']:,}"]


def promises(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    found = one("reliability", promise=row[0])
    share = re.search(r"--share (\S+)", found["command"])
    counts = [f"{found['cases']:,}", str(found["failures"]), half_up(found["seconds"], 1)]
    return [row[0], *counts, share[1] if share else "1", found["commit"][:7]]


def shipped_model(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    folder = shipped_models()[row[0].strip("`")]
    config, metrics = read_config(folder), read_metrics(folder)
    metric = PRIMARY_METRICS[config.task]
    size = sum(path.stat().st_size for path in folder.iterdir())
    return [
        *row[:2],
        config.system,
        metric.replace("_", " "),
        *(half_up(metrics[split][metric], 2) for split in ("dev", "test")),
        grouped(metrics["speed"]["words_per_second"]),
        half_up(size / 1e6, 1),
        config.card.licence or "",
    ]


def shipped_beside_others(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    found = one("shipped", corpus={"EWT": "en_ewt-ud-test", "BTC": "btc"}[row[0]], system=row[1].strip("`"))
    score = half_up(found.get("f1", found["accuracy"]), 2)
    return [*row[:2], score, f"{found['words_per_second']:,} ({found['slowest_pass']:,} – {found['fastest_pass']:,})"]


def latency_of_the_server(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    found = one("serving", phase="latency", model=row[0])
    times = [found[key] for key in ("p50_ms", "p95_ms", "p99_ms", "tagger_p50_ms")]
    times += [found["mean_ms"][part] for part in table.header[5:]]
    return [row[0], *(half_up(each, 1) for each in times)]


def server_under_load(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    found = one("serving", phase=row[0], clients=200)
    counts = [f"{found[key]:,}" for key in ("requests", "failures")]
    return [row[0], *counts, *(grouped(found[key]) for key in ("p50_ms", "p95_ms", "p99_ms", "requests_per_second"))]


def server_in_trouble(table: MarkdownTable, row: tuple[str, ...]) -> list[str]:
    found = one("serving", phase=row[0])
    beside = {
        "memory": "{memory_mb_before} MB before, {memory_mb_after} MB after",
        "kill and restart": "answers again {recovery} s after SIGKILL",
        "stop": "exit status {exit_status}",
        "generated": "{server_errors} answers of status 500 or above",
    }[row[0]]
    recovery = half_up(found.get("seconds_to_recover", 0), 1)
    return [row[0], f"{found['requests']:,}", f"{found['failures']:,}", beside.format(**found, recovery=recovery)]


# A table is known by its document and by how its head begins.
CHECKS: dict[tuple[str, str], Expected] = {
    ("README.md", "test | EN-EWT POS accuracy"): generated,
    ("docs/results.md", "test | EN-EWT POS accuracy"): generated,
    ("docs/results.md", "Diffusion-MF, sentences/s"): speed_of_diffusion_mf,
    ("docs/results.md", "Diffusion-MF with our recipe, inference"): speed_of_trained_models,
    ("docs/results.md", "test, trained on a GPU"): little_data,
    ("docs/results.md", "test, trained on one core"): little_data,
    ("docs/results.md", "test, few sentences, on a GPU"): few_sentences,
    ("docs/results.md", "dev, settings chosen by dmf train"): nothing_lost,
    ("docs/notebook.md", "dev | EN-EWT"): dev_of_four_seeds,
    ("docs/notebook.md", "argmax, % of the sentences"): invalid_sentences,
    ("docs/notebook.md", "test (dev) | EN-EWT"): objectives,
    ("docs/notebook.md", " | CoNLL-2003 dev"): with_recall,
    ("docs/findings.md", "test score (exact match, %; seeds)"): under_the_papers_settings,
    ("docs/findings.md", "our recipe, four seeds, test: Diffusion-MF minus"): minus_other_systems,
    ("docs/findings.md", "the paper's settings, test: Diffusion-MF minus"): minus_other_systems,
    ("docs/findings.md", "exact match on dev (score), by calls"): exact_match_by_calls,
    ("docs/findings.md", "CoNLL-2003, other occurrences"): controls_of_recall,
    ("docs/findings.md", "CoNLL-2003, documents"): with_documents,
    ("docs/findings.md", "CoNLL-2003, granite"): controls_of_recall,
    ("docs/findings.md", "test, seed 1, without positions in the encoder"): without_positions,
    ("docs/findings.md", "test, seed 1, argmax / Mask-Viterbi"): by_decoder,
    ("docs/findings.md", "EN-EWT dev, Mean-Field iterations"): sweep,
    ("docs/findings.md", "EN-EWT dev, denoiser layers"): sweep,
    ("docs/findings.md", "EN-EWT dev (test), granite, base"): by_base,
    ("docs/findings.md", "whole corpora, test: exact match"): exact_match_of_systems,
    ("docs/correction.md", "CoNLL-2003 dev, per 1,000 spans"): applied_to_all,
    ("docs/correction.md", "EN-EWT dev, per 1,000 units"): corrected,
    ("docs/correction.md", "ZH-GSDSimp dev, per 1,000 units"): corrected,
    ("docs/pretrained.md", "dev | EN-EWT, mpnet"): dev_with_pretrained_encoders,
    ("docs/benchmarks.md", "operation, forward and backward"): operations,
    ("docs/crf-migration.md", "one H200, ms"): crf_on_a_gpu,
    ("docs/crf-migration.md", "one CPU thread, ms"): crf_on_a_cpu,
    ("docs/benchmarks.md", " | corpus | Diffusion-Uni"): throughput_of_denoisers,
    ("docs/benchmarks.md", "base of the reverse schedule"): bases,
    ("docs/benchmarks.md", "runs at a time"): runs_at_a_time,
    ("docs/benchmarks.md", "Diffusion-MF on en-ewt, sentences/s"): more_data,
    ("docs/benchmarks.md", "inference, units of a sentence"): longer_sentences,
    ("docs/benchmarks.md", "fifteen Mean-Field iterations"): fifteen_iterations,
    ("docs/benchmarks.md", "% more time without a family"): kernel_families,
    ("docs/benchmarks.md", "tagger | accuracy"): on_a_cpu,
    ("docs/benchmarks.md", "test | on one core | score"): shipped_beside_others,
    ("docs/tagging.md", "name | labels | system"): shipped_model,
    ("docs/data.md", "corpus | tokenizer | tokens, dev"): tokens_of_raw_text,
    ("docs/deployment.md", "exported model | parameters"): exported,
    ("docs/reliability.md", "promise | cases"): promises,
    ("docs/serving.md", "one client, 20 words"): latency_of_the_server,
    ("docs/serving.md", "200 clients, en-pos-fast"): server_under_load,
    ("docs/serving.md", "phase | requests"): server_in_trouble,
}

# Single runs that were looked at on the way, in a document that says of which of them rows were kept.
TRIALS = {
    ("docs/notebook.md", "test, one core, positions of the encoder"),
    *(
        ("docs/notebook.md", head)
        for head in (
            "corpus | system | change | dev",
            "corpus | system | learning rate, epochs",
            "corpus | system | 5,000",
            "change | 10 epochs",
            "trained on | calls",
            "little data",
            "more calls, dev",
            "kernels | ms",
            "tweets, F1",
            "documents, one core",
        )
    ),
}

DOCUMENTS = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
# Figures of theory, or of the definitions themselves: tests of their own compute them again.
ELSEWHERE = {"docs/data.md", "docs/synthetic-corpus.md", "docs/metrics.md", "docs/equations.md"}


def key_of(table: MarkdownTable, keys: Any) -> tuple[str, str] | None:
    head = " | ".join(table.header)
    return next((key for key in keys if key[0] == table.document and head.startswith(key[1])), None)


TABLES = [
    table
    for document in DOCUMENTS
    for table in tables_of(document)
    if document not in ELSEWHERE or key_of(table, CHECKS) is not None
]

CHECKED = [(table, CHECKS[key]) for table in TABLES if (key := key_of(table, CHECKS)) is not None]


@pytest.mark.parametrize(("table", "expected"), CHECKED, ids=[table.name[:60] for table, _ in CHECKED])
def test_tables_show_what_the_result_files_hold(table: MarkdownTable, expected: Expected) -> None:
    for row in table.rows:
        assert list(row) == expected(table, row), table.name


def test_every_checked_table_is_there() -> None:
    assert {key_of(table, CHECKS) for table, _ in CHECKED} == set(CHECKS)


def test_no_other_table_reports_scores_or_speeds() -> None:
    """A cell that begins with a decimal or a number in thousands is a measurement, and needs a file that holds it."""
    for table in TABLES:
        if key_of(table, [*CHECKS, *TRIALS]) is None:
            cells = [cell for row in table.rows for cell in row[1:]]
            figures = [cell for cell in cells if re.match(r"[−+]?(\d+\.\d|\d{1,3},\d{3})", cell)]
            assert not figures, f"{table.name}: {figures[:3]}"


def test_trials_that_have_rows_have_their_scores_there() -> None:
    """Those marked ●, and all of the second round that were not cut off."""
    scores = {
        (row["system"], row["task"], half_up(metrics[PRIMARY_METRICS[Task(row["task"])]], 2))
        for row in rows_of("runs")
        for metrics in row["decoders"].values()
    }
    num_checked = 0
    for table in TABLES:
        if key_of(table, TRIALS) is None or table.header[:2] != ("corpus", "system"):
            continue
        place = next((index for index, head in enumerate(table.header) if head.startswith("dev")), 0)
        is_kept = table.header[2].startswith("learning rate")
        for row in table.rows:
            if ("●" in row[2] or is_kept) and "cut off" not in row[-1]:
                number = re.match(r"\d+\.\d+", row[place])
                assert number is not None, row
                key = (SYSTEM_OF_TITLE[row[1]], TASKS[CORPUS_OF_TITLE[row[0]]].value, number[0])
                assert key in scores, row
                num_checked += 1
    assert num_checked > 25


@pytest.mark.parametrize(("corpus", "p"), [("conll2003", "< .0001"), ("en-ewt", "= .13")])
def test_fixes_with_recall_are_as_many_fewer_than_those_of_lcrf_as_the_text_says(corpus: str, p: str) -> None:
    place = {"corpus": corpus, "encoder": "scratch", "order": "reading", "applied_to_all": False}
    found = one("correction", system="diffusion-mf", recall="beliefs", **place)
    plain = one("correction", system="lcrf", recall="nothing", **place)
    fewer = half_up(100 * (1 - found["fixes"] / plain["fixes"]), 0)
    chance = found["minus_lcrf"]["p_fewer"]
    assert p == ("< .0001" if chance < 1e-4 else f"= {half_up(chance, 2).lstrip('0')}")
    documents = ["docs/correction.md", *(["docs/findings.md", "README.md"] if corpus == "conll2003" else [])]
    for document in documents:
        text = " ".join((ROOT / document).read_text(encoding="utf-8").split())
        assert re.search(rf"\b{fewer} % fewer [^.]*\b(LCRF|reading order)[^.]*p {re.escape(p)}", text), document


def test_fixes_with_recall_are_as_many_fewer_than_those_of_lcrf_with_states_as_the_text_says() -> None:
    place = {"corpus": "conll2003", "encoder": "scratch", "order": "reading", "applied_to_all": False}
    found = one("correction", system="diffusion-mf", recall="beliefs", **place)
    states = one("correction", system="lcrf", recall="states", **place)
    fewer = half_up(100 * (1 - found["fixes"] / states["fixes"]), 0)
    assert found["minus_lcrf_with_states"]["p_fewer"] < 1e-4
    findings, correction = (
        (ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("findings", "correction")
    )
    assert f"{fewer} % fewer than an LCRF that recalls states (p < .0001)" in " ".join(findings.split())
    assert f"a denoiser that recalls beliefs needs {fewer} % fewer (p < .0001)" in " ".join(correction.split())


def test_under_the_papers_settings_the_direct_systems_are_ahead_as_the_text_says() -> None:
    text = " ".join((ROOT / "docs/findings.md").read_text(encoding="utf-8").split())
    ahead: dict[str, list[bool]] = {"test": [], "dev": []}
    for system, corpus in itertools.product(("unigram", "mean-field", "lcrf"), ("en-ewt", "conll2003", "zh-gsdsimp")):
        pair = [selected("paper", name, corpus) for name in ("diffusion-mf", system)]
        for split, found in ahead.items():
            scores = [row[f"{split}_scores"] for row in pair]
            found += [scores[0][seed] < scores[1][seed] for seed in scores[0].keys() & scores[1].keys()]
        if all(len(row["seeds"]) == 4 for row in pair):
            test, dev = (compared(*pair, split) for split in ahead)
            assert "{} ({}; dev {}, {})".format(*test, *dev) in text, (system, corpus)
    counts = {split: (sum(found), len(found)) for split, found in ahead.items()}
    assert "{} of {} on test and all {} on dev".format(*counts["test"], counts["dev"][1]) in text
    assert all(ahead["dev"])


def test_recall_of_beliefs_and_of_states_differ_as_the_text_says() -> None:
    """What the bullets below the tables of the controls say beside them."""
    beliefs, given, both = (seeing("Diffusion-MF", name) for name in ("documents", "clamps-recall", "clamps-both"))
    sentences, states, with_dropout, layers = (
        seeing("LCRF", name) for name in ("sentences", "states", "states-dropout", "states-layers")
    )
    two_calls = seeing("Diffusion-Uni", "two-calls")
    earlier = {name: selected("recall", name, "conll2003") for name in ("diffusion-mf", "diffusion-uni")}
    place = {"experiment": "calls", "corpus": "conll2003", "system": "diffusion-mf", "selected": True}
    by_calls = {calls: one("recall", setting=f"calls={calls}", **place) for calls in (1, 2, 5, 10)}
    means = [half_up(each["test_mean"], 2) for each in by_calls.values()]
    later = [compared(beliefs, earlier["diffusion-mf"], split) for split in ("test", "dev")]
    assert later[0][0] == later[1][0]
    text = " ".join((ROOT / "docs/findings.md").read_text(encoding="utf-8").split())
    for sentence, pairs in (
        ("`states` gains {} F1 over LCRF without ({})", [(states, sentences, "test")]),
        ("`states-dropout`, by {}; with it, LCRF gains {} ({})", [(with_dropout, sentences, "test")]),
        (
            "Dev selects `clamps-both` for Diffusion-MF and `states-dropout` for LCRF: +{}.",
            [(both, with_dropout, "test")],
        ),
        ("do not differ (+{} on test, {}; dev +{}, {})", [(both, given, "test"), (both, given, "dev")]),
        ("only {} above `documents` on test ({}; dev {}, {})", [(given, beliefs, "test"), (given, beliefs, "dev")]),
        (
            "is {} below LCRF with `states` on test ({}; dev {}, {})",
            [(states, layers, "test"), (states, layers, "dev")],
        ),
        (
            "(`two-calls`; +{} on test, {}; dev {}, {})",
            [(seeing("Diffusion-Uni", "two-passes"), two_calls, split) for split in ("test", "dev")],
        ),
        ("was {} above this `two-calls` ({})", [(earlier["diffusion-uni"], two_calls, "test")]),
        (
            "would be {} above LCRF with `states` ({}) and {} above `states-dropout` ({})",
            [(earlier["diffusion-mf"], each, "test") for each in (states, with_dropout)],
        ),
    ):
        parts = [part for pair in pairs for part in compared(*pair)]
        if "`states-dropout`, by" in sentence:
            parts.insert(0, compared(with_dropout, states, "dev")[0])
        elif ": +{}." in sentence:
            parts.pop()
        assert sentence.format(*parts) in text
    assert "{} on test after one call, {} after two, {} after five and {} after ten".format(*means) in text
    assert f"ten minus one: {compared(by_calls[10], by_calls[1], 'test')[1]}" in text
    assert f"is {later[0][0].removeprefix('−')} lower on test ({later[0][1]}) and on dev ({later[1][1]})" in text
    selection = {
        title: max(rows, key=lambda each: each["dev_mean"])
        for title, rows in (
            ("Diffusion-MF", (beliefs, given, both)),
            ("LCRF", (sentences, states, with_dropout, layers, seeing("LCRF", "flag"))),
        )
    }
    assert (selection["Diffusion-MF"], selection["LCRF"]) == (both, with_dropout)
    assert compared(beliefs, states, "test")[1] in (ROOT / "README.md").read_text(encoding="utf-8")


def test_differences_between_systems_are_those_of_the_rows() -> None:
    """The sentence on Diffusion-MF minus the direct systems, and its asterisks: p < .05, paired t-test."""
    text = " ".join((ROOT / "docs/notebook.md").read_text(encoding="utf-8").split())
    sentence = re.search(r"On test, Diffusion-MF minus the direct systems.*?\(\\\* p < \.05", text)
    assert sentence is not None
    found = re.findall(r"([−+]?\d\.\d\d)(\\\*)?", sentence[0])
    expected = []
    for corpus in ("en-ewt", "fr-gsd", "conll2003", "zh-gsdsimp"):
        for system in ("unigram", "mean-field", "lcrf"):
            pair = [
                {int(seed): score for seed, score in selected("scratch", name, corpus)["test_scores"].items()}
                for name in ("diffusion-mf", system)
            ]
            difference = paired_difference(*pair)
            assert difference is not None
            shown = half_up(abs(difference.mean), 2)
            sign = "" if shown == "0.00" else "−" if difference.mean < 0 else "+"
            expected.append((sign + shown, "\\*" if difference.is_significant else ""))
    assert found == expected


def test_the_differences_within_a_sentence_that_the_text_calls_significant_are() -> None:
    """And all intervals of the table exclude the paper's difference to direct systems."""
    text = " ".join((ROOT / "docs/findings.md").read_text(encoding="utf-8").split())
    significant: dict[str, dict[tuple[str, str], tuple[str, str]]] = {"test": {}, "dev": {}}
    for split, found in significant.items():
        for corpus in CORPUS_OF_TITLE.values():
            for system in ("unigram", "mean-field", "lcrf"):
                pair = [
                    {int(s): v for s, v in selected("scratch", name, corpus)[f"{split}_scores"].items()}
                    for name in ("diffusion-mf", system)
                ]
                difference = paired_difference(*pair)
                assert difference is not None
                assert difference.mean < 0.245
                p = difference.p_value or 1.0
                if p < 0.05:
                    p_value = half_up(p, 3 if p < 0.01 else 2).lstrip("0")
                    found[system, corpus] = (signed(difference.mean, 2), f"p = {p_value}")
    on_test, on_dev = significant.values()
    assert set(on_test) == {("mean-field", "en-ewt"), ("lcrf", "en-ewt")}
    assert set(on_dev) == {("mean-field", "en-ewt"), ("mean-field", "conll2003")}
    first, second = on_test["mean-field", "en-ewt"], on_dev["mean-field", "en-ewt"]
    assert f"those on English to Mean-Field ({first[1]}; dev {second[0]}, {second[1]})" in text
    assert f"and to LCRF ({on_test['lcrf', 'en-ewt'][1]}; dev" in text
    assert "below Mean-Field on CoNLL-2003 ({}, {})".format(*on_dev["mean-field", "conll2003"]) in text
    (table,) = (table for table in tables_of("docs/findings.md") if table.header[0].startswith("our recipe"))
    for row in table.rows[:3]:
        for cell in row[1:]:
            numbers = [float(number.replace("−", "-")) for number in re.findall(r"[−+]\d+\.\d+", cell)]
            assert numbers[2] < numbers[3], "the paper's is above the interval"


def test_rows_say_where_they_come_from() -> None:
    for path in (ROOT / "results").glob("*.json"):
        for row in read_rows(path):
            assert {"command", "commit", "hardware", "versions", "date"} <= set(row), path.name
