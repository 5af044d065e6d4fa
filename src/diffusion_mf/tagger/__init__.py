"""Using a trained model: `Tagger` labels sentences; `save_model` and `load_model` keep the model on disk."""

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
