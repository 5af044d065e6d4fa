"""Metrics as defined in the paper; `docs/metrics.md` explains each with an example."""

from diffusion_mf.evaluation.metrics import Counts
from diffusion_mf.evaluation.reconstruction import NO_LABEL
from diffusion_mf.evaluation.report import PRIMARY_METRICS, Report, TaskScorer, score_sentences

__all__ = ["NO_LABEL", "PRIMARY_METRICS", "Counts", "Report", "TaskScorer", "score_sentences"]
