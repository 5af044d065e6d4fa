"""Metrics, as the paper defines them; `docs/metrics.md` defines each with an example."""

from diffusion_mf.evaluation.metrics import Counts
from diffusion_mf.evaluation.reconstruction import NO_LABEL
from diffusion_mf.evaluation.report import PRIMARY_METRICS, Report, TaskScorer, score_sentences

__all__ = ["NO_LABEL", "PRIMARY_METRICS", "Counts", "Report", "TaskScorer", "score_sentences"]
