"""How well raw text is split into tokens and sentences, by the definitions of the UD evaluation, beside spaCy's rules.

    DIFFUSION_MF_DATA=… python benchmarks/raw_text.py

The raw text is put together again from the ``# text`` lines, blank lines between paragraphs. A token or a sentence is right if it
begins and ends at the same characters, white space not counted. Tokens are surface tokens; for words, a multi-word token that its words spell
(don't: do, n't) counts as those. Prints a table and writes results/tokens.json.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from diffusion_mf.data.raw_text import Offsets, split_sentences
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import half_up, print_table
from diffusion_mf.lab.results import provenance, write_rows

ROOT = Path(__file__).resolve().parent.parent
CORPORA = {
    "en-ewt": ("en", "ud-2.15/UD_English-EWT/en_ewt-ud-{}.conllu"),
    "fr-gsd": ("fr", "ud-2.15/UD_French-GSD/fr_gsd-ud-{}.conllu"),
}


class Treebank(NamedTuple):
    """The raw text, and what stands in it."""

    text: str
    tokens: set[Offsets]
    words: set[Offsets]
    sentences: set[Offsets]


def read_treebank(path: Path) -> Treebank:
    """Offsets count characters that are no white space."""
    text: list[str] = []
    tokens, words, sentences = set[Offsets](), set[Offsets](), set[Offsets]()
    size = 0
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        lines = block.split("\n")
        comments = [line for line in lines if line.startswith("#")]
        if text and any(line.startswith(("# newpar", "# newdoc")) for line in comments):
            text.append("\n\n")
        rows = [line.split("\t") for line in lines if not line.startswith("#") and "." not in line.split("\t")[0]]
        own = next(line for line in comments if line.startswith("# text = ")).removeprefix("# text = ")
        text.append(own)
        first, inside = size, 0
        parts, surface = list[str](), ""
        for row in rows:
            form = "".join(row[1].split())
            if inside:
                parts.append(form)
                inside -= 1
                if not inside:
                    words |= set(_spelled(parts, size - len(surface), surface))
                continue
            if "-" in row[0]:
                begin, end = map(int, row[0].split("-"))
                inside, parts, surface = end - begin + 1, [], form
            else:
                words.add((size, size + len(form)))
            tokens.add((size, size + len(form)))
            size += len(form)
        sentences.add((first, size))
        surface_rows = [row for row in rows if "-" in row[0]] + rows[-1:]
        if not any("SpaceAfter=No" in row[9] for row in surface_rows[-1:]):
            text.append(" ")
        if "".join(own.split()) != "".join("".join(text).split())[first:]:
            raise InputError("the # text line is not what its tokens spell", path=path)
    return Treebank("".join(text), tokens, words, sentences)


def _spelled(parts: list[str], start: int, surface: str) -> Iterator[Offsets]:
    if "".join(parts) != surface:
        yield start, start + len(surface)
        return
    for part in parts:
        yield start, start + len(part)
        start += len(part)


def _dense(text: str, sentences: Iterable[Iterable[Offsets]]) -> tuple[set[Offsets], set[Offsets]]:
    """Tokens and sentences by offsets that do not count white space."""
    counts = [0]
    for character in text:
        counts.append(counts[-1] + (not character.isspace()))
    tokens, found = set[Offsets](), set[Offsets]()
    for sentence in sentences:
        spans = [(counts[start], counts[end]) for start, end in sentence]
        spans = [span for span in spans if span[0] < span[1]]
        tokens |= set(spans)
        if spans:
            found.add((spans[0][0], spans[-1][1]))
    return tokens, found


def f1(gold: set[Offsets], found: set[Offsets]) -> float:
    return 200 * len(gold & found) / (len(gold) + len(found))


Splitter = Callable[[str], Iterable[Iterable[Offsets]]]


def with_diffusion_mf(language: str | None) -> Splitter:
    return lambda text: split_sentences(text, language=language)


def with_spacy(language: str) -> Splitter:
    import spacy

    pipeline = spacy.blank(language)
    pipeline.add_pipe("sentencizer")
    pipeline.max_length = 10_000_000

    def split(text: str) -> Iterator[list[Offsets]]:
        # Its rules for sentences do not know blank lines, so that it is given one paragraph at a time.
        for paragraph in re.finditer(r"(?:.|\n(?!\n))+", text):
            for sentence in pipeline(paragraph[0]).sents:
                start = paragraph.start()
                yield [(start + token.idx, start + token.idx + len(token)) for token in sentence if not token.is_space]

    return split


def main() -> None:
    parser = argparse.ArgumentParser(description="Token and sentence F1 on raw text; writes results/tokens.json.")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "tokens.json")
    arguments = parser.parse_args()
    folder = os.environ.get("DIFFUSION_MF_DATA")
    if not folder:
        raise SystemExit("DIFFUSION_MF_DATA is not set; name the folder of the corpora")
    measured = [Path(__file__).resolve(), "data/raw_text.py"]
    shared = provenance("python benchmarks/raw_text.py", packages=["spacy"], measured=measured)
    rows = []
    for corpus, (language, name) in CORPORA.items():
        splitters = {"diffusion_mf": with_diffusion_mf(None), f"diffusion_mf, {language}": with_diffusion_mf(language)}
        try:
            splitters[f"spaCy, {language}"] = with_spacy(language)
        except ImportError:
            print("spaCy is not installed; pip install spacy for its rows")
        for split in ("dev", "test"):
            treebank = read_treebank(Path(folder) / name.format(split))
            for title, splitter in splitters.items():
                tokens, sentences = _dense(treebank.text, splitter(treebank.text))
                rows.append(
                    {
                        "corpus": corpus,
                        "split": split,
                        "tokenizer": title,
                        "token_f1": round(f1(treebank.tokens, tokens), 4),
                        "word_f1": round(f1(treebank.words, tokens), 4),
                        "sentence_f1": round(f1(treebank.sentences, sentences), 4),
                        **shared,
                    }
                )
    metrics = ("token_f1", "word_f1", "sentence_f1")
    print_table(
        ["corpus", "split", "tokenizer", *metrics],
        [[row["corpus"], row["split"], row["tokenizer"], *(half_up(row[name], 2) for name in metrics)] for row in rows],
    )
    write_rows(arguments.output, rows, replace_by=("corpus", "split", "tokenizer"))


if __name__ == "__main__":
    main()
