"""The paper's tables from our results, each with the paper's values for comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from diffusion_mf.lab.experiments.plan import TableKind
from diffusion_mf.lab.experiments.selection import Outcomes
from diffusion_mf.lab.experiments.tables.grid import TABLE_FORMATS, Cell, Table, render
from diffusion_mf.lab.experiments.tables.main_results import (
    denoiser_tables,
    main_tables,
    ner_tables,
    segmentation_tables,
)
from diffusion_mf.lab.experiments.tables.sweeps import (
    base_tables,
    calls_tables,
    depth_tables,
    iterations_tables,
    objective_tables,
    readings_tables,
    scaling_tables,
    variants_tables,
)

TABLES: Mapping[TableKind, Callable[[Outcomes], list[Table]]] = {
    "main": main_tables,
    "denoiser": denoiser_tables,
    "objective": objective_tables,
    "variants": variants_tables,
    "calls": calls_tables,
    "ner": ner_tables,
    "seg-pos": segmentation_tables,
    "scaling": scaling_tables,
    "depth": depth_tables,
    "iterations": iterations_tables,
    "base": base_tables,
    "readings": readings_tables,
}
"""The functions that make the tables, by kind."""

NEEDED: Mapping[str, str] = {
    "main": "a corpus",
    "denoiser": "a diffusion system",
    "objective": "variants such as full and no-denoising",
    "variants": "variants",
    "calls": "a diffusion system, and calls in the plan's evaluation",
    "ner": "a corpus of the task ner",
    "seg-pos": "a corpus of the task seg-pos",
    "scaling": "size in the plan's grid",
    "depth": "denoiser.layers in the plan's grid",
    "iterations": "structure.num_iterations in the plan's grid",
    "base": "a diffusion system, and bases in the plan's evaluation",
    "readings": "a system with categorical diffusion, and readings in the plan's evaluation",
}
"""What a plan must contain for each kind."""

__all__ = ["NEEDED", "TABLES", "TABLE_FORMATS", "Cell", "Table", "render"]
