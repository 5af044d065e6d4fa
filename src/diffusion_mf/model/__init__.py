"""The model: an encoder, and one of three processes over its states.

    batch → encoder states → core (direct | categorical | bits) → losses, or evidence for a decoder

`CORES` says what stands behind a process of `systems.SYSTEMS`.
"""

from diffusion_mf.model.core import Core, Prediction
from diffusion_mf.model.labeller import CORES, Labeller, count_parameters

__all__ = ["CORES", "Core", "Labeller", "Prediction", "count_parameters"]
