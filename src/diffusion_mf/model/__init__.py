"""The model: an encoder, and one of three processes over its states.

    batch → encoder states → core (direct | categorical | bits) → losses, or input for a decoder

`CORES` maps each process of `systems.SYSTEMS` to its core.
"""

from diffusion_mf.model.core import Core, Prediction
from diffusion_mf.model.labeller import CORES, Labeller, count_parameters

__all__ = ["CORES", "Core", "Labeller", "Prediction", "count_parameters"]
