"""The model: an encoder, and one of three processes over its states.

    batch → encoder states → core (direct | categorical | bits) → losses, or evidence for a decoder

`CORES` says what stands behind a process of `systems.SYSTEMS`.
"""

from diffusion_mf.model.core import Core
from diffusion_mf.model.labeller import CORES, Labeller, count_parameters
from diffusion_mf.model.prediction import Prediction

__all__ = ["CORES", "Core", "Labeller", "Prediction", "count_parameters"]
