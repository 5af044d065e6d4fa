"""Whole files: tagged (``dmf tag``) and scored (``dmf evaluate``)."""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import torch

from diffusion_mf.data.conllu import ConlluColumn
from diffusion_mf.data.corpus import Corpus
from diffusion_mf.data.documents import with_first_document
from diffusion_mf.data.formats import FileFormat, format_of, suffix_format
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.repair import Repairs
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.data.text_lines import BYTE_ORDER_MARK
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.calibration import expected_calibration_error
from diffusion_mf.evaluation.report import Report, TaskScorer
from diffusion_mf.files import StrPath, open_output
from diffusion_mf.tagger.file_reading import Item, read_items
from diffusion_mf.tagger.file_writing import Layout
from diffusion_mf.tagger.tagger import Tagger

Advance = Callable[[int], None]
"""called with the number of sentences just done"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingOptions:
    """How a file's sentences are tagged; None is the model's own."""

    batch_tokens: int | None = None
    calls: int | None = None
    decoder: str | None = None
    one_document: bool = False
    """a file is one document, whatever it says"""


def tag_file(
    tagger: Tagger,
    path: StrPath,
    output: StrPath,
    *,
    options: TaggingOptions | None = None,
    file_format: FileFormat | None = None,
    output_format: FileFormat | None = None,
    column: ConlluColumn | None = None,
    scheme: LabelScheme | None = None,
    use_scores: bool = False,
    advance: Advance = lambda count: None,
    note: Callable[[str], None] = lambda message: None,
) -> int:
    """Write the sentences of ``path`` with predicted labels to ``output``, ``-`` being a standard stream; count them.

    Formats are given or told by the files' names; standard input is plain text, an output is what its input is (columns for
    plain text). Memory does not grow with the file. ``note`` hears of units without a form.
    """
    options = options or TaggingOptions()
    if path != "-" and not os.path.exists(path):
        # Said before anything about its name.
        raise InputError("no such file", path=path, remedy="check the path")
    input_format = file_format or (FileFormat.TEXT if path == "-" else format_of(path))
    natural = FileFormat.COLUMNS if input_format is FileFormat.TEXT else input_format
    layout = Layout(
        task=tagger.task,
        file_format=output_format or suffix_format(output) or natural,
        column=column or tagger.model.config.data.column,
        scheme=scheme,
        use_scores=use_scores,
    )
    pending: deque[Item] = deque()
    repairs = Repairs(path)

    def sentences() -> Iterator[Sentence]:
        is_guess = file_format is None and path == "-"
        for item in read_items(path, input_format, tagger.task, is_guess=is_guess, repairs=repairs):
            pending.append(item)
            yield item.sentence._replace(document=1) if options.one_document else item.sentence

    # Whoever writes into a pipe may wait for an answer before writing more.
    looks_ahead = input_format is FileFormat.COLUMNS and path != "-" and os.path.isfile(path)
    results = tagger.stream(
        with_first_document(sentences()) if looks_ahead else sentences(),
        batch_tokens=options.batch_tokens,
        calls=options.calls,
        decoder=options.decoder,
    )
    num_sentences = 0
    with open_output(output) as stream:
        for result in results:
            text = layout.text(pending.popleft(), result)
            if num_sentences == 0 and layout.file_format in (FileFormat.COLUMNS, FileFormat.TEXT):
                # A reader takes a mark at the very beginning for the file's own, so a unit's needs another before it.
                text = BYTE_ORDER_MARK * text.startswith(BYTE_ORDER_MARK) + text
            stream.write(text.encode())
            if output == "-":
                # Whoever types sentences into a pipe waits for the answer.
                stream.flush()
            num_sentences += bool(result.units)
            advance(1)
    if (message := repairs.describe(is_gold=False)) is not None:
        note(message)
    return num_sentences


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """How a model does on a corpus."""

    report: Report
    mean_score: float
    """of the chosen labels; equal to their accuracy if scores are calibrated"""
    calibration_error: float
    """see `evaluation.calibration.expected_calibration_error`"""


def evaluate_corpus(
    tagger: Tagger,
    corpus: Corpus,
    *,
    options: TaggingOptions | None = None,
    advance: Advance = lambda count: None,
) -> Evaluation:
    """Tag the sentences of a labelled corpus and score labels and scores against what stands there."""
    options = options or TaggingOptions()
    scorer = TaskScorer(tagger.task, corpus.scheme)
    scores: list[float] = []
    is_right: list[bool] = []
    sentences: Iterable[Sentence] = corpus
    if options.one_document:
        sentences = (sentence._replace(document=1) for sentence in corpus)
    results = tagger.stream(sentences, batch_tokens=options.batch_tokens, calls=options.calls, decoder=options.decoder)
    for sentence, result in zip(corpus, results, strict=True):
        gold = sentence.labels or ()
        scorer.update(gold, result.labels, sentence.units)
        scores.extend(result.scores)
        is_right.extend(map(str.__eq__, gold, result.labels))
        advance(1)
    score_tensor = torch.tensor(scores, dtype=torch.float64)
    return Evaluation(
        scorer.result(),
        float(score_tensor.mean()) if scores else 0.0,
        expected_calibration_error(score_tensor, torch.tensor(is_right, dtype=torch.bool)),
    )
