"""Selection by dev over seeds: means, sample deviations, paired differences and their significance."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diffusion_mf.data.corpus import Task
from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.folders import ExperimentFolder, Outcome
from diffusion_mf.lab.experiments.paper import ablation_decoder
from diffusion_mf.systems import SYSTEMS

try:
    import pandas  # noqa: F401 (tables are made with it)
    from scipy import stats
except ImportError:
    raise InputError(
        "tables and plots need pandas and scipy", remedy="pip install 'diffusion-mf[experiments]'"
    ) from None

FEWEST_SEEDS_FOR_TEST = 4
"""with fewer, a t-test is meaningless, so none is reported"""

LARGEST_P = 0.05
"""significance level of differences that tables mark"""


@dataclass(frozen=True)
class Summary:
    """Mean and sample deviation of a score, or of a difference, over seeds; one seed has no deviation."""

    mean: float
    deviation: float | None
    seeds: tuple[int, ...]
    is_difference: bool = False
    p_value: float | None = None
    """of differences: that of a two-sided paired t-test; none with too few seeds, or if all differences are equal"""

    @property
    def standard_error(self) -> float | None:
        """deviation / √n."""
        return None if self.deviation is None else self.deviation / math.sqrt(len(self.seeds))

    @property
    def is_significant(self) -> bool:
        """Whether the test has p < .05."""
        return self.p_value is not None and self.p_value < LARGEST_P


def summarise(scores: Mapping[int, float]) -> Summary | None:
    """Mean and deviation of scores by seed; None if there are none."""
    if not scores:
        return None
    values = list(scores.values())
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.fmean(values), deviation, tuple(sorted(scores)))


def paired_difference(first: Mapping[int, float], second: Mapping[int, float]) -> Summary | None:
    """``first`` − ``second`` over the seeds that both have; None if there are none."""
    differences = {seed: first[seed] - second[seed] for seed in sorted(set(first) & set(second))}
    found = summarise(differences)
    if found is None:
        return None
    p_value = None
    if found.deviation and len(differences) >= FEWEST_SEEDS_FOR_TEST:
        p_value = float(stats.ttest_1samp(list(differences.values()), 0.0).pvalue)
    return dataclasses.replace(found, is_difference=True, p_value=p_value)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The runs that differ only in their seed."""

    corpus: str
    system: str
    encoder: str
    variant: str
    results: Mapping[int, Mapping[str, Any]]
    """of finished runs, by seed"""
    planned: tuple[int, ...]
    """the seeds of the plan"""
    diverged: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()

    @property
    def task(self) -> Task:
        """What was labelled."""
        return Task(self._any()["task"])

    @property
    def metric(self) -> str:
        """The metric used for selection."""
        return str(self._any()["metric"])

    @property
    def is_diffusion(self) -> bool:
        """Whether there is a reverse schedule."""
        return any(result.get("is_diffusion") for result in self.results.values())

    @property
    def decoders(self) -> tuple[str, ...]:
        """The decoders that every run was scored with."""
        first, *rest = [result["decoders"] for result in self.results.values()]
        return tuple(name for name in first if all(name in other for other in rest))

    @property
    def compared(self) -> tuple[str, ...]:
        """Decoders that were scored only for comparison and must not be selected."""
        found = (name for result in self.results.values() for name in result.get("compared", {}).get("dev", {}))
        return tuple(name for name in dict.fromkeys(found) if name not in self.decoders)

    def schedules(self, prefix: str) -> list[str]:
        """The evaluations with other schedules whose names begin with ``prefix``, such as calls=5 with calls=."""
        found = (name for result in self.results.values() for name in result.get("schedules", {}))
        return [name for name in dict.fromkeys(found) if name.startswith(prefix)]

    def invalid_rates(self, decoder: str) -> dict[int, float]:
        """Percentage of dev sentences with invalid spans, by seed, for the seeds where it is known for ``decoder``."""
        rates = {seed: result["analysis"]["invalid_by_decoder"] for seed, result in self._analysed().items()}
        return {seed: by_decoder[decoder] for seed, by_decoder in rates.items() if decoder in by_decoder}

    def analyses(self, decoder: str) -> dict[int, Mapping[str, Any]]:
        """The error analysis on dev by seed, for the seeds that selected ``decoder``."""
        return {seed: result["analysis"] for seed, result in self._analysed().items() if result["decoder"] == decoder}

    def _analysed(self) -> dict[int, Mapping[str, Any]]:
        return {seed: result for seed, result in self.results.items() if result.get("analysis")}

    def _any(self) -> Mapping[str, Any]:
        return next(iter(self.results.values()))

    def scores(
        self, split: str, decoder: str, metric: str | None = None, *, schedule: str | None = None
    ) -> dict[int, float]:
        """A metric by seed, for the seeds that have it; ``schedule`` is one of the plan's evaluations, such as calls=5."""
        found = {}
        for seed, result in self.results.items():
            if schedule is None:
                own = result["decoders"] if split == "dev" else result.get("test_decoders", {})
                by_decoder = {**result.get("compared", {}).get(split, {}), **own}
            else:
                by_decoder = result.get("schedules", {}).get(schedule, {}).get(split, {})
            value = by_decoder.get(decoder, {}).get(metric or self.metric)
            if value is not None:
                found[seed] = value
        return found

    def summary(
        self, split: str, decoder: str, metric: str | None = None, *, schedule: str | None = None
    ) -> Summary | None:
        """`scores`, summarised."""
        return summarise(self.scores(split, decoder, metric, schedule=schedule))

    def selected_decoder(self) -> str:
        """The decoder with the best mean dev score; the first in case of a tie."""
        return max(self.decoders, key=self.mean_dev)

    def ablation_decoder(self) -> str:
        """The decoder of the paper's ablations; of Diffusion-LCRF and DiffusionSL, which do not have it, the selected one."""
        wanted = ablation_decoder(self.task)
        return wanted if wanted in self.decoders else self.selected_decoder()

    def mean_dev(self, decoder: str | None = None) -> float:
        """The mean dev score with a decoder (default: the selected one); −∞ without a score."""
        found = self.summary("dev", decoder or self.selected_decoder())
        return float("-inf") if found is None else found.mean


def best_group(groups: Sequence[Group]) -> Group | None:
    """The group with the best mean dev score, among those with the largest number of finished seeds."""
    most = max((len(group.results) for group in groups), default=0)
    return max(
        (group for group in groups if len(group.results) == most), key=lambda group: group.mean_dev(), default=None
    )


class Outcomes:
    """The groups of a plan that have results."""

    def __init__(self, groups: Iterable[Group]) -> None:
        self.all_groups = list(groups)
        """including those without any result, which tables mention"""
        self.groups = [group for group in self.all_groups if group.results]

    def only(self, **wanted: str) -> Outcomes:
        """The outcomes with the given corpus, system, encoder or variant."""
        return Outcomes(
            group for group in self.all_groups if all(getattr(group, key) == value for key, value in wanted.items())
        )

    def selected(self, **wanted: str) -> Group | None:
        """Of those with the given corpus, system or encoder, the setting with the best mean dev score (`best_group`)."""
        return best_group(self.only(**wanted).groups)

    def values(self, key: str) -> list[str]:
        """The different corpora, systems, encoders or variants in the order of the plan; systems in the order of their table.

        Systems of plugins that are not imported come last.
        """
        found = list(dict.fromkeys(getattr(group, key) for group in self.groups))
        if key != "system":
            return found
        return [*(name for name in SYSTEMS if name in found), *(name for name in found if name not in SYSTEMS)]


def read_outcomes(folder: ExperimentFolder, *, plan: str | None = None) -> tuple[dict[str, Any], Outcomes]:
    """The record of a plan that was run in ``folder``, and its outcomes."""
    records = folder.plan_records()
    if not records:
        raise InputError(
            "no plan was run in this folder", path=folder.root, remedy="give the --output folder of dmf experiment run"
        )
    if plan is None and len(records) > 1:
        raise InputError(
            "several plans were run in this folder",
            path=folder.root,
            remedy=f"choose one with --plan: {', '.join(records)}",
        )
    if plan is not None and plan not in records:
        raise InputError(
            f"no plan {plan!r} was run in this folder", path=folder.root, remedy=f"choose one of {', '.join(records)}"
        )
    record = records[plan or next(iter(records))]
    _check_same_data(folder, record["runs"])
    grouped: dict[tuple[str, str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for run in record["runs"]:
        grouped[run["corpus"], run["system"], run["encoder"], run["variant"]].append(run)
    return record, Outcomes(_group(folder, *key, runs) for key, runs in grouped.items())


def _check_same_data(folder: ExperimentFolder, runs: Sequence[Mapping[str, Any]]) -> None:
    """Raise `InputError` if finished runs on a corpus were made with different data; unknown digests are taken to be right."""
    first: dict[tuple[str, str], tuple[str, str]] = {}
    for run in runs:
        for split, digest in ((folder.run(run["name"]).result() or {}).get("data") or {}).items():
            name, known = first.setdefault((run["corpus"], split), (run["name"], digest))
            if digest != known:
                raise InputError(
                    f"runs on {run['corpus']} were made with different {split} data, such as {name} and {run['name']}",
                    path=folder.root,
                    remedy="delete the folders of those that dmf experiment run --dry-run lists",
                )


def _group(
    folder: ExperimentFolder, corpus: str, system: str, encoder: str, variant: str, runs: list[dict[str, Any]]
) -> Group:
    results, diverged, failed = {}, [], []
    for run in runs:
        place = folder.run(run["name"])
        result = place.result()
        if result is not None and result.get("decoders"):
            results[int(run["seed"])] = result
        elif place.outcomes()[-1:] == [Outcome.DIVERGED]:
            diverged.append(int(run["seed"]))
        elif place.outcomes()[-1:] in ([Outcome.FAILED], [Outcome.REFUSED]):
            failed.append(int(run["seed"]))
    return Group(
        corpus=corpus,
        system=system,
        encoder=encoder,
        variant=variant,
        results=results,
        planned=tuple(int(run["seed"]) for run in runs),
        diverged=tuple(diverged),
        failed=tuple(failed),
    )
