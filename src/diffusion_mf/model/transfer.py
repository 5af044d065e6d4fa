"""Start a new model from the weights of a trained one, even if forms, characters and labels differ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffusion_mf.batches.vocabulary import NUM_SPECIAL_IDS, Vocabulary
from diffusion_mf.data.files import StrPath
from diffusion_mf.errors import InputError
from diffusion_mf.model.labeller import Labeller
from diffusion_mf.model.storage import StoredModel
from diffusion_mf.networks.denoisers import ADDED_LATER

Rows = list[tuple[int, int]]
"""what both models share: the index in the old one and in the new one"""

# Which dimensions of a tensor count forms, characters, pairs of forms, labels, or pairs of labels.
_AXES: tuple[tuple[re.Pattern[str], dict[int, str]], ...] = (
    (re.compile(r"encoder\.(.+\.)?words\.weight"), {0: "forms"}),
    (re.compile(r"encoder\.(.+\.)?characters\.embedding\.weight"), {0: "characters"}),
    (re.compile(r"encoder\.(.+\.)?pairs\.embeddings\.weight"), {0: "pairs"}),
    (re.compile(r"(core\.scorer\.unary|core\.denoiser\.state_scorer|auxiliary)\.3\.(weight|bias)"), {0: "labels"}),
    (re.compile(r"core\.scorer\.local_transitions\.3\.(weight|bias)"), {0: "label pairs"}),
    (re.compile(r"core\.scorer\.global_transitions"), {0: "labels", 1: "labels"}),
    (re.compile(r"core\.denoiser\.(labels|recalled|known_others|known_in_document)\.weight"), {1: "labels"}),
)
_OF_BITS = re.compile(r"core\.denoiser\.(bits|output\.2)\..*")
"""DiffusionSL numbers its labels: with different labels, its bits mean something else"""


class Kept(NamedTuple):
    """How much of a trained model a new one takes over."""

    forms: int
    new_forms: int
    labels: int
    new_labels: int
    lost_labels: int

    def describe(self, path: StrPath) -> str:
        """One line for the user."""
        return (
            f"training starts from the weights of {path}: {self.forms:,} forms are shared and {self.new_forms:,} are new; "
            f"{self.labels} labels are shared, {self.new_labels} are new and {self.lost_labels} are dropped"
        )


@torch.no_grad()
def start_from(labeller: Labeller, vocabulary: Vocabulary, start: StoredModel, *, path: StrPath) -> Kept:
    """Copy the weights of ``start``, a model in the folder ``path``, to ``labeller`` wherever both mean the same.

    Embeddings of new forms, and weights of new labels, keep their random initial values. `InputError` if networks differ.
    """
    rows = _common_rows(start.vocabulary, vocabulary)
    old_keys, new_keys = _spelling_keys(start.labeller), _spelling_keys(labeller)
    for name in old_keys.keys() & new_keys.keys():
        rows[name] = _common(*({key: row for row, key in enumerate(keys[name])} for keys in (old_keys, new_keys)))
    old, new = start.labeller.state_dict(), labeller.state_dict()
    has_other_labels = start.vocabulary.labels != vocabulary.labels
    for name in [*new, *(name for name in old if name not in new)]:
        axes = {0: name} if name in rows else next((axes for pattern, axes in _AXES if pattern.fullmatch(name)), {})
        if name in new and name in old and has_other_labels and _OF_BITS.fullmatch(name):
            continue
        if name not in old and name.endswith(ADDED_LATER):
            continue
        if name not in old or name not in new or _others(old[name], axes) != _others(new[name], axes):
            raise InputError(
                f"its network differs from the configured one (in {name})",
                path=path,
                remedy=f"train with the settings of its config.json (system {start.config.system}, same encoder and sizes)",
            )
        _copy(old[name], new[name], {axis: rows[kind] for axis, kind in axes.items()})
    num_kept = len(rows["forms"]) - NUM_SPECIAL_IDS
    num_labels = len(rows["labels"])
    return Kept(
        num_kept,
        len(vocabulary.form_counts) - num_kept,
        num_labels,
        len(vocabulary.labels) - num_labels,
        len(start.vocabulary.labels) - num_labels,
    )


def _others(tensor: Tensor, axes: dict[int, str]) -> list[int]:
    return [size for axis, size in enumerate(tensor.shape) if axis not in axes]


def _copy(old: Tensor, new: Tensor, rows: dict[int, Rows]) -> None:
    """Write into ``new``, which is the model's own memory."""
    if not rows:
        new.copy_(old)
        return
    taken = old
    for axis, pairs in rows.items():
        taken = taken.index_select(axis, torch.tensor([before for before, _ in pairs], dtype=torch.int64))
    places = [
        torch.tensor([after for _, after in rows[axis]], dtype=torch.int64) if axis in rows else torch.arange(size)
        for axis, size in enumerate(new.shape)
    ]
    new[torch.meshgrid(*places, indexing="ij")] = taken


def _spelling_keys(labeller: Labeller) -> dict[str, list[int]]:
    """Of every row of the encoder's tables of affixes and features, by the table's name; the first row is that of all others."""
    affixes, features = (getattr(labeller.encoder, name, None) for name in ("affixes", "features"))
    found = {} if affixes is None else {"encoder.affixes.embedding.weight": [0, *affixes.keys.tolist()]}
    if features is not None:
        for distance in range(len(features.tables)):
            found[f"encoder.features.tables.{distance}.weight"] = [0, *features.keys(distance).tolist()]
    return found


def _common_rows(old: Vocabulary, new: Vocabulary) -> dict[str, Rows]:
    special = [(index, index) for index in range(NUM_SPECIAL_IDS)]
    forms = special + _common(old.form_ids, new.form_ids)
    labels = _common(old.label_ids, new.label_ids)
    form_of = dict(forms)
    old_pairs, new_pairs = (
        # Row 0 is shared by all other pairs.
        {pair: row for row, pair in enumerate(sorted(vocabulary.pairs), 1)}
        for vocabulary in (old, new)
    )
    renamed = {(form_of.get(first), form_of.get(second)): row for (first, second), row in old_pairs.items()}
    return {
        "forms": forms,
        "characters": special + _common(old.character_ids, new.character_ids),
        "pairs": [(0, 0), *((row, new_pairs[pair]) for pair, row in renamed.items() if pair in new_pairs)],
        "labels": labels,
        "label pairs": [(a * len(old.labels) + b, x * len(new.labels) + y) for a, x in labels for b, y in labels],
    }


def _common(old: Mapping[Any, int], new: Mapping[Any, int]) -> Rows:
    return [(index, new[name]) for name, index in old.items() if name in new]
