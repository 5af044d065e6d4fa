"""The encoders without pretraining, and the table of all kinds of encoders."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffusion_mf.batches.batching import Batch
from diffusion_mf.batches.layouts import Layout, Rotation
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import EncoderConfig
from diffusion_mf.errors import InputError
from diffusion_mf.networks.known_words import WordRows
from diffusion_mf.networks.pretrained import PretrainedEncoder
from diffusion_mf.networks.transformer import FeedForward, SelfAttention
from diffusion_mf.networks.words import FEATURE_DEVIATION, Encoder, NeighbourPairs, WordEncoder, WordFeatures
from diffusion_mf.ops.backends import CPU_LANES
from diffusion_mf.ops.chain_scores import unit_mask
from diffusion_mf.ops.gelu import gelu
from diffusion_mf.plugins import Table


class ScratchEncoder(WordEncoder):
    """States e₁…eₙ from units s₁…sₙ (paper: “Neural Architecture”).

    Positions are rotary (or, with ``positions = "none"``, unknown) and layers are pre-norm: our choices, since the paper does not
    specify them.
    """

    def __init__(self, config: EncoderConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.unit_dropout = config.unit_dropout
        self.head_width = config.width // config.heads
        self.has_positions = config.positions == "rotary"
        self.pairs = (
            NeighbourPairs(vocabulary, width=config.pair_width, dropout=config.word_dropout)
            if config.pair_width
            else None
        )
        pairs_width = self.pairs.width if self.pairs else 0
        self.projection = nn.Linear(self.embedding_width + pairs_width, config.width)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, batch: Batch, layout: Layout) -> Float[Tensor, "*units D"]:
        """The states of a batch, once per sentence."""
        known = batch.encoder_input
        if isinstance(known, WordRows):
            states = layout.pack(known.vectors())
            if self.pairs:
                weight = self.projection.weight[:, self.embedding_width :]
                states = states + F.linear(self.pairs.embed(batch, layout), weight)
            return self.transform(states, layout)
        return self.contextualise(self.embed(batch, layout), layout)

    def embed(self, batch: Batch, layout: Layout) -> Float[Tensor, "*units E"]:
        """Words and their spellings, without context; kept apart because the LSTM does not compile."""
        is_hidden = self._hidden_units(batch)
        words = self.embed_units(batch, layout.pack(batch.form_ids), layout.pack(batch.word_rows))
        if is_hidden is not None:
            words = words.masked_fill(layout.pack(is_hidden)[..., None], 0)
        if not self.pairs:
            return words
        pairs = self.embedding_dropout(self.pairs.embed(batch, layout, is_hidden))
        return torch.cat([words, pairs.to(words.dtype)], dim=-1)

    def _hidden_units(self, batch: Batch) -> Bool[Tensor, "B N"] | None:
        """The units that are hidden completely, in training."""
        if not self.training or self.unit_dropout == 0:
            return None
        return torch.rand(batch.form_ids.shape, device=batch.form_ids.device) < self.unit_dropout

    def contextualise(self, embeddings: Float[Tensor, "*units E"], layout: Layout) -> Float[Tensor, "*units D"]:
        """The Transformer, which compiles to one graph."""
        return self.transform(self.projection(embeddings), layout)

    @property
    def vector_width(self) -> int:
        """Of projected words."""
        return self.width

    def word_vectors(self, form_ids: Int[Tensor, " W"], spellings: Float[Tensor, "W S"]) -> Float[Tensor, "W E"]:
        """The projected words; the contribution of pairs is not known from a single word."""
        weight = self.projection.weight[:, : self.embedding_width]
        return F.linear(torch.cat([self.words(form_ids), spellings], dim=-1), weight, self.projection.bias)

    def transform(self, states: Float[Tensor, "*units D"], layout: Layout) -> Float[Tensor, "*units D"]:
        """The layers, from projected words on."""
        rotation = layout.rotation(self.head_width)
        if not self.has_positions:
            rotation = rotation.none()
        for layer in self.layers:
            states = layer(states, layout, rotation)
        return self.norm(states)


class EncoderLayer(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = SelfAttention(config.width, config.heads)
        self.feed_forward_norm = nn.LayerNorm(config.width)
        self.feed_forward = FeedForward(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, states: Float[Tensor, "*units D"], layout: Layout, rotation: Rotation
    ) -> Float[Tensor, "*units D"]:
        """The next layer's states."""
        states = states + self.dropout(self.attention(self.attention_norm(states), layout, rotation))
        return states + self.dropout(self.feed_forward(self.feed_forward_norm(states)))


class WindowEncoder(WordEncoder):
    """State i = GELU(Σ_{o = −r…r} v_o(word_{i+o}) + b + pairs); ours, the paper has no such encoder.

    v_o(word) = W_o·e(word), with e the word's embedding and its spelling, or the sum of the vectors of its features at window position o
    (`WordFeatures`), or both. Beyond the ends of a sentence it is 0; pairs of neighbours are optional. All v_o(word) depend on the
    word alone (`word_vectors`), so that tagging only has to add up 2r + 1 rows of a table (`known_words`).
    """

    def __init__(self, config: EncoderConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.radius = config.window
        self.dropout = nn.Dropout(config.dropout)
        # One matrix for all positions of the window; the bias is added once.
        self.places = (
            nn.Linear(self.embedding_width, self.num_places * config.width, bias=False) if config.word_width else None
        )
        self.bias = nn.Parameter(torch.zeros(config.width))
        self.features = (
            WordFeatures(
                vocabulary,
                width=config.width,
                radius=config.window,
                max_characters=config.max_characters,
                min_count=config.min_feature_count,
            )
            if config.features
            else None
        )
        # Models of versions that had no pairs here know none, whatever their configuration says.
        self.pairs = (
            None
            if not (config.pair_width or config.features) or not vocabulary.pairs
            else NeighbourPairs(vocabulary, width=2 * config.width, dropout=0.0, deviation=FEATURE_DEVIATION)
            if config.features
            else NeighbourPairs(vocabulary, width=config.pair_width, dropout=config.word_dropout)
        )
        self.pair_weights = (
            nn.Linear(self.pairs.width, config.width, bias=False) if self.pairs and not config.features else None
        )

    @property
    def num_places(self) -> int:
        """The number of words that a state sees."""
        return 2 * self.radius + 1

    @property
    def vector_width(self) -> int:
        """The width of a word's parts for all window positions."""
        return self.num_places * self.width

    def word_vectors(self, form_ids: Int[Tensor, " W"], spellings: Float[Tensor, "W S"]) -> Float[Tensor, "W E"]:
        """v_o(word) for every window position o, concatenated, with the bias at the position of the word itself."""
        bias = F.pad(self.bias, (self.radius * self.width, self.radius * self.width))
        if self.places is None:
            return spellings[:, self.spelling_width :] + bias
        of_words, of_spellings = self.places.weight.split([self.words.embedding_dim, self.spelling_width], dim=1)
        # Words not seen in training differ only in their spelling.
        if bool((form_ids == form_ids[0]).all()):
            form_ids = form_ids[:CPU_LANES]
        forms = F.linear(self.words(form_ids), of_words, bias)
        vectors = F.linear(spellings[:, : self.spelling_width], of_spellings)
        vectors.add_(forms if len(forms) == len(spellings) else forms[0])
        return vectors if self.features is None else vectors.add_(spellings[:, self.spelling_width :])

    def forward(self, batch: Batch, layout: Layout) -> Float[Tensor, "*units D"]:
        """The states of a batch."""
        known = batch.encoder_input
        if isinstance(known, WordRows):
            sums = self._sums_of_rows(known, layout)
        else:
            sums = layout.pack(self._sums(self._unit_vectors(batch)) + self.bias)
        if self.pairs is not None and self.pair_weights is not None:
            sums = sums + self.pair_weights(self.embedding_dropout(self.pairs.embed(batch, layout)))
        elif self.pairs is not None:
            sums = sums + self.pair_sums(self.pairs, layout.pack(self.pairs.rows(batch)))
        return self.dropout(gelu(sums))

    @staticmethod
    def pair_sums(pairs: NeighbourPairs, rows: Int[Tensor, "*units 2"]) -> Float[Tensor, "*units D"]:
        """The state vectors of both pairs of every unit: a row of the table has one for a pair's second word and one for its first."""
        weight = pairs.embeddings.weight
        halves = torch.where(rows > 0, 2 * rows + torch.arange(2, device=rows.device), 0)
        return F.embedding(halves, weight.view(-1, weight.shape[1] // 2), padding_idx=0).sum(-2)

    def _unit_vectors(self, batch: Batch) -> Float[Tensor, "B N E"]:
        """v_o of every unit, concatenated; 0 at padding."""
        is_unit = unit_mask(batch.lengths, batch.form_ids.shape[1])[..., None]
        vectors = None
        if self.places is not None:
            vectors = self.places(self.embed_units(batch, batch.form_ids, batch.word_rows) * is_unit)
        if self.features is not None:
            # An embedding, not indexing: its gradient is summed in a fixed order.
            of_words = self.features(self.features.rows(batch.character_ids, batch.character_lengths))
            of_features = F.embedding(batch.word_rows, of_words) * is_unit
            vectors = of_features if vectors is None else vectors + of_features
        assert vectors is not None, "a window without words has features"
        return vectors

    def _sums(self, vectors: Float[Tensor, "B N E"]) -> Float[Tensor, "B N D"]:
        """Σ_o of the part of each neighbour's vector for window position o."""
        num_units = vectors.shape[1]
        padded = F.pad(vectors.unflatten(-1, (self.num_places, self.width)), (0, 0, 0, 0, self.radius, self.radius))
        shifted = [padded[:, place : place + num_units, place] for place in range(self.num_places)]
        return torch.stack(shifted).sum(0)

    def _sums_of_rows(self, known: WordRows, layout: Layout) -> Float[Tensor, "*units D"]:
        """The same from the table; the bias is part of the vector of the word in the middle.

        Row r has its part for window position o at r·(2r + 1) + o, and padding adds nothing.
        """
        rows = F.pad(known.rows, (self.radius, self.radius)).unfold(1, self.num_places, 1)
        parts = layout.pack(rows) * self.num_places + torch.arange(self.num_places)
        table = known.table.view(-1, self.width)
        sums = F.embedding_bag(parts.view(-1, self.num_places), table, mode="sum")
        return sums.view(*parts.shape[:-1], self.width)


ENCODERS: Table[Callable[[EncoderConfig, Vocabulary], Encoder]] = Table(
    "encoder", {"scratch": ScratchEncoder, "pretrained": PretrainedEncoder, "window": WindowEncoder}
)


def build_encoder(config: EncoderConfig, vocabulary: Vocabulary, *, files: Path | None = None) -> Encoder:
    """The encoder that a configuration names or, given its ``files``, a saved one, without its weights."""
    if config.kind not in ENCODERS:
        close = difflib.get_close_matches(config.kind, ENCODERS, n=1)
        raise InputError(
            f"encoder.kind must be one of {', '.join(ENCODERS)}, found {config.kind!r}",
            remedy=f"the nearest is {close[0]}" if close else "choose one, or add --plugin MODULE for one of your own",
        )
    builder = ENCODERS[config.kind]
    if builder is PretrainedEncoder and files is not None:
        return PretrainedEncoder.from_files(config, files)
    return builder(config, vocabulary)


__all__ = ["ENCODERS", "Encoder", "PretrainedEncoder", "ScratchEncoder", "WindowEncoder", "build_encoder"]
