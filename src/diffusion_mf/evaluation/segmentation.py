"""Words made of characters: segmentation F1, gold-word XPOS, aligned XPOS, joint F1."""

from __future__ import annotations

import dataclasses

from diffusion_mf.evaluation.counts import Counts, percentage
from diffusion_mf.evaluation.reconstruction import Reconstruction
from diffusion_mf.evaluation.spans import SpanResult, SpanScorer


@dataclasses.dataclass(frozen=True)
class WordResult:
    """The paper's four figures for Chinese and the counts behind them (“Metrics and Output Reconstruction”).

    ``segmentation``: words from boundaries alone. ``joint``: words whose characters carry one tag; right if place and tag
    are. ``aligned``: words of ``joint`` that stand where a gold word does, of which ``joint.correct`` have its tag.
    ``gold_words_right``: gold words whose tag wins the vote of their characters, a diagnostic that segmentation cannot hurt.
    """

    segmentation: Counts
    joint: SpanResult
    aligned: int
    gold_words_right: int

    @property
    def seg_f1(self) -> float:
        """Segmentation F1."""
        return self.segmentation.f1

    @property
    def joint_f1(self) -> float:
        """F1 of words with their tags."""
        return self.joint.counts.f1

    @property
    def gold_xpos(self) -> float:
        """The share of gold words whose tag is the majority of their characters' tags."""
        return percentage(self.gold_words_right, self.joint.counts.gold)

    @property
    def aligned_xpos(self) -> float:
        """The share of aligned words whose tag is right."""
        return percentage(self.joint.counts.correct, self.aligned)


class WordScorer:
    """Counts words sentence by sentence."""

    def __init__(self) -> None:
        self._segmentation = Counts()
        self._joint = SpanScorer()
        self._aligned = 0
        self._gold_words_right = 0

    def update(self, sentence: Reconstruction) -> None:
        """Add one sentence."""
        gold = {span[:2] for span in sentence.gold_spans}
        segments = {span[:2] for span in sentence.segments}
        self._segmentation += Counts(len(gold & segments), len(segments), len(gold))
        self._aligned += len(gold & {span[:2] for span in sentence.predicted_spans})
        self._joint.update(sentence.gold_spans, sentence.predicted_spans)
        self._gold_words_right += sum(
            span.label == vote for span, vote in zip(sentence.gold_spans, sentence.votes, strict=True)
        )

    def result(self) -> WordResult:
        """What was counted so far."""
        return WordResult(self._segmentation, self._joint.result(), self._aligned, self._gold_words_right)
