"""Writes the synthetic corpus to files: three splits of each flavour, and a manifest that describes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from diffusion_mf.data.files import StrPath, make_folder, open_output, write_json
from diffusion_mf.data.label_schemes import words_of_characters
from diffusion_mf.errors import InputError, quoted
from diffusion_mf.lab.synthetic.flavours import DEFAULT_STRENGTH, find_flavour, generate
from diffusion_mf.lab.synthetic.grammar import SyntheticSentence
from diffusion_mf.lab.synthetic.optimal import collect_facts, expected_scores, realised_scores

MANIFEST = "manifest.json"
MOST_SENTENCES = 1_000_000
"""of a split: all of them are in memory before any is written"""


def _conllu_lines(sentence: SyntheticSentence, name: str) -> Iterable[str]:
    yield f"# sent_id = {name}"
    yield f"# text = {' '.join(sentence.units)}"
    for number, (unit, label) in enumerate(zip(sentence.units, sentence.labels, strict=True), start=1):
        yield f"{number}\t{unit}\t_\t{label}\t_\t_\t_\t_\t_\t_"


def _conllu_word_lines(sentence: SyntheticSentence, name: str) -> Iterable[str]:
    yield f"# sent_id = {name}"
    yield f"# text = {''.join(sentence.units)}"
    words, tags = words_of_characters(sentence.units, sentence.labels)
    for number, (word, tag) in enumerate(zip(words, tags, strict=True), start=1):
        yield f"{number}\t{word}\t_\t_\t{tag}\t_\t_\t_\t_\tSpaceAfter=No"


def _column_lines(sentence: SyntheticSentence, name: str) -> Iterable[str]:
    for unit, label in zip(sentence.units, sentence.labels, strict=True):
        yield f"{unit} {label}"


# For each flavour, the suffix of its files and a function that gives the lines of a sentence.
_FORMATS: dict[str, tuple[str, Callable[[SyntheticSentence, str], Iterable[str]]]] = {
    "pos": ("conllu", _conllu_lines),
    "ner": ("txt", _column_lines),
    "seg-pos": ("conllu", _conllu_word_lines),
}


def write_corpus(
    folder: StrPath,
    *,
    flavours: Sequence[str],
    sizes: dict[str, int],
    seed: int,
    adjacent: float = DEFAULT_STRENGTH,
    distant: float = DEFAULT_STRENGTH,
) -> dict[str, Any]:
    """Write FLAVOUR/SPLIT.conllu (or .txt) for every flavour and split, then the manifest, which is also returned.

    ``sizes`` gives the number of sentences of each split. The manifest contains the settings, the groups with their patterns,
    and for each split the counts and the Bayes-optimal scores (see `optimal`).
    """
    for split, size in sizes.items():
        if size < 1:
            raise InputError(
                f"the {split} split must have at least 1 sentence, found {size}", remedy="ask for 1 or more"
            )
        if size > MOST_SENTENCES:
            raise InputError(
                f"the {split} split cannot have more than {MOST_SENTENCES:,} sentences, found {quoted(size)}",
                remedy="ask for fewer",
            )
    # Everything is generated before anything is written, so that bad settings leave no files behind.
    corpora = {
        name: {
            split: list(generate(name, size, seed, split=split, adjacent=adjacent, distant=distant))
            for split, size in sizes.items()
        }
        for name in flavours
    }
    manifest: dict[str, Any] = {"seed": seed, "adjacent": adjacent, "distant": distant, "flavours": {}}
    for name, splits in corpora.items():
        suffix, lines = _FORMATS[name]
        make_folder(os.path.join(folder, name))
        templates = find_flavour(name).templates
        described: dict[str, Any] = {
            "patterns": {
                kind: [{"labels": list(p.labels), "probability": p.probability} for p in template.patterns]
                for kind, template in templates.items()
            },
            "splits": {},
        }
        for split, sentences in splits.items():
            file = f"{name}/{split}.{suffix}"
            with open_output(os.path.join(folder, file)) as stream:
                for number, sentence in enumerate(sentences, 1):
                    stream.write(("\n".join(lines(sentence, f"{name}-{split}-{number}")) + "\n\n").encode())
            described["splits"][split] = {"file": file, **_describe(sentences, name)}
        manifest["flavours"][name] = described
    write_json(os.path.join(folder, MANIFEST), manifest)
    return manifest


def _describe(sentences: Sequence[SyntheticSentence], name: str) -> dict[str, Any]:
    flavour = find_flavour(name)
    facts = collect_facts(sentences, flavour=flavour)
    return {
        "sentences": len(sentences),
        "units": facts.units,
        "groups": {kind: facts.groups[kind] for kind in flavour.templates},
        "expected": expected_scores(facts, flavour=flavour),
        "realised": realised_scores(sentences, flavour=flavour),
    }
