"""The contract of encoders."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from jaxtyping import Float
from torch import Tensor, nn

from diffusion_mf.data.batching import Batch, PrepareInput
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.layouts import Layout


class Encoder(nn.Module, abc.ABC):
    """Units in, one state per unit out."""

    width: int
    """of a state"""

    @property
    def prepare_input(self) -> PrepareInput | None:
        """What makes ``batch.encoder_input`` from sentences when a batch is collated; None: nothing is needed."""
        return None

    def study(self, sentences: Iterable[Sentence], *, note: Callable[[str], None]) -> None:
        """See the sentences of a run before it begins; ``note`` is told what a user should know about them."""

    def sizes(self, sentences: Sequence[Sentence]) -> list[int]:
        """How much work each sentence is, to be weighed against a batch's budget: its units, or what becomes of them."""
        return [len(sentence.units) for sentence in sentences]

    def write_files(self, folder: Path) -> None:
        """Put into ``folder``, which is made if need be, what is needed beside the weights to build the encoder again."""

    def check_folder(self, folder: Path) -> None:
        """`InputError` if `write_files` could not write there: better before training than after."""

    def input_digest(self, sentences: Iterable[Sentence]) -> str:
        """A name for what the encoder makes of ``sentences`` before its weights act: a resumed run must find the same."""
        return ""

    @property
    def hub_name(self) -> str | None:
        """The name on the Hugging Face hub of what it was made from, if it came from there."""
        return None

    @abc.abstractmethod
    def forward(self, batch: Batch, layout: Layout) -> Float[Tensor, "*units D"]:
        """The states of a batch, laid out as ``layout`` says; `Layout.pack` does it for an encoder that works on (B, N, …).

        Padding may influence no other position, and what stands at padding is never read.
        """
