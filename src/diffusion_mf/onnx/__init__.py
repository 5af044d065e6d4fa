"""Tag with a model that ``dmf export`` wrote, without PyTorch: NumPy and ONNX Runtime are enough.

    from diffusion_mf.onnx import Tagger

    Tagger.load("exported").tag([["John", "lives", "in", "Paris"]])[0].labels

The labels are those of `diffusion_mf.Tagger`. Only `export`, which writes such folders, imports PyTorch.
"""

from diffusion_mf.data.label_schemes import Span
from diffusion_mf.onnx.tagger import TaggedSentence, Tagger

__all__ = ["Span", "TaggedSentence", "Tagger"]
