"""A trained model in use: on disk (`save_model`, `load_model`) and at work (`Tagger`)."""

from diffusion_mf.model.storage import FORMAT_VERSION, StoredModel, load_model, save_model
from diffusion_mf.tagger.pipeline import TokenClassificationPipeline
from diffusion_mf.tagger.requests import Clamp
from diffusion_mf.tagger.results import Alternative, Span, TaggedSentence, TrajectoryStep
from diffusion_mf.tagger.tagger import Tagger

__all__ = [
    "FORMAT_VERSION",
    "Alternative",
    "Clamp",
    "Span",
    "StoredModel",
    "TaggedSentence",
    "Tagger",
    "TokenClassificationPipeline",
    "TrajectoryStep",
    "load_model",
    "save_model",
]
