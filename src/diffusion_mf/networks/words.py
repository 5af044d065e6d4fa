"""The interface of encoders, and the part that sees one word at a time: embeddings, spellings, pairs of neighbours."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

from diffusion_mf.batches.batching import Batch, PrepareInput, shorten
from diffusion_mf.batches.layouts import Layout
from diffusion_mf.batches.vocabulary import PADDING_ID, UNKNOWN_ID, Vocabulary
from diffusion_mf.config import EncoderConfig
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.ops.chain_scores import unit_mask


class Encoder(nn.Module, abc.ABC):
    """Maps units to one state per unit."""

    width: int
    """of a state"""

    @property
    def prepare_input(self) -> PrepareInput | None:
        """Builds ``batch.encoder_input`` from sentences when a batch is collated; None: nothing is needed."""
        return None

    def study(self, sentences: Iterable[Sentence], *, note: Callable[[str], None]) -> None:
        """Process the sentences of a run before training; ``note`` receives messages for the user."""

    def sizes(self, sentences: Sequence[Sentence]) -> list[int]:
        """The cost of each sentence, counted against a batch's budget: its units, or its subwords."""
        return [len(sentence.units) for sentence in sentences]

    def write_files(self, folder: Path) -> None:
        """Write to ``folder``, created if necessary, everything except the weights that is needed to rebuild the encoder."""

    def check_folder(self, folder: Path) -> None:
        """`InputError` if `write_files` could not write there: better before training than after."""

    def input_digest(self, sentences: Iterable[Sentence]) -> str:
        """A digest of the encoder's input for ``sentences``: a resumed run must find the same."""
        return ""

    @property
    def hub_name(self) -> str | None:
        """The name on the Hugging Face hub of the model it was made from, if it came from there."""
        return None

    @abc.abstractmethod
    def forward(self, batch: Batch, layout: Layout) -> Float[Tensor, "*units D"]:
        """The states of a batch in the given ``layout``; encoders that work on (B, N, …) use `Layout.pack`.

        Padding must not influence other positions, and states at padding are never read.
        """


GRADIENT_SUM = 1024.0
"""the sum to which the absolute values of a gradient are scaled while it passes through float16"""


class CharacterLSTM(nn.Module):
    """The last states of two LSTMs, one from the left and one from the right (Lample et al., 2016).

    The two directions are separate modules: the second reads each word reversed within its length, so that on a GPU
    neither needs the lengths on the host. On a CPU sequences are packed, so that short words do not pay for long ones.
    """

    def __init__(self, num_characters: int, *, width: int, hidden: int, max_characters: int) -> None:
        super().__init__()
        self.max_characters = max_characters
        self.embedding = nn.Embedding(num_characters, width, padding_idx=0)
        self.from_left = nn.LSTM(width, hidden, batch_first=True)
        self.from_right = nn.LSTM(width, hidden, batch_first=True)
        self.width = 2 * hidden

    def forward(self, character_ids: Int[Tensor, "W C"], lengths: Int[Tensor, " W"]) -> Float[Tensor, "W D"]:
        """One vector per distinct word; undefined for words without characters (padding)."""
        character_ids, lengths = shorten(character_ids, lengths, self.max_characters)
        lengths = lengths.clamp(min=1)
        positions = torch.arange(character_ids.shape[1], device=character_ids.device)
        reversed_ids = character_ids.gather(1, (lengths[:, None] - 1 - positions).clamp(min=0))
        embedded, reversed_embedded = self.embedding(character_ids), self.embedding(reversed_ids)
        if not embedded.is_cuda:
            left = packed_last_state(self.from_left, embedded, lengths)
            return torch.cat([left, packed_last_state(self.from_right, reversed_embedded, lengths)], dim=-1)
        # Neither direction fills a GPU: they run concurrently.
        here, beside = torch.cuda.current_stream(embedded.device), _stream_beside(embedded.device)
        beside.wait_stream(here)
        try:
            with torch.cuda.stream(beside):
                right = gathered_last_state(self.from_right, reversed_embedded, lengths)
            left = gathered_last_state(self.from_left, embedded, lengths)
        finally:  # also if memory runs out: a recording cannot be ended while streams are apart
            here.wait_stream(beside)
        for tensor, stream in ((reversed_embedded, beside), (lengths, beside), (right, here)):
            tensor.record_stream(stream)
        return torch.cat([left, right], dim=-1)


@functools.cache
def _stream_beside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def packed_last_state(
    lstm: nn.LSTM, inputs: Float[Tensor, "W C E"], lengths: Int[Tensor, " W"]
) -> Float[Tensor, "W H"]:
    """The state at each word's last character, without computing padding; the host reads the lengths."""
    packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
    return lstm(packed)[1][0][0]


def gathered_last_state(
    lstm: nn.LSTM, inputs: Float[Tensor, "W C E"], lengths: Int[Tensor, " W"]
) -> Float[Tensor, "W H"]:
    """The same, also running over padding, without waiting for the device.

    Under autocast cuDNN's LSTM computes in float16, whatever type is requested. Gradients of a mean over thousands of units
    are too small for that, and those of a few very frequent words may be too large, so they are scaled on their way
    through the LSTM, by a factor taken from the gradient itself.
    """
    use_scaling = inputs.is_cuda and torch.is_autocast_enabled(inputs.device.type)
    return (
        last_state_with_scaled_gradient(lstm, inputs, lengths) if use_scaling else _last_state(lstm(inputs)[0], lengths)
    )


def last_state_with_scaled_gradient(
    lstm: nn.LSTM, inputs: Float[Tensor, "W C E"], lengths: Int[Tensor, " W"]
) -> Float[Tensor, "W H"]:
    """The last states; in the backward pass, the gradient is scaled by a power of two before the LSTM, and back after it.

    The gradient of a weight is a sum over words and characters. It stays near `GRADIENT_SUM` times the largest input or
    state, far below the limit of float16, however many words there are and however large their gradients.
    """
    scale = _Scale()
    weights = [_Unscaled.apply(weight, scale) for weight in lstm.all_weights[0]]
    nothing = inputs.new_zeros(1, len(inputs), lstm.hidden_size)
    states = torch._VF.lstm(
        _Unscaled.apply(inputs, scale), (nothing, nothing), weights, True, 1, 0.0, lstm.training, False, True
    )[0]
    # In float32 first: in the states' own type, small numbers would be lost before they could be scaled.
    return _Scaled.apply(_last_state(states, lengths).float(), scale)


def _last_state(states: Float[Tensor, "W C H"], lengths: Int[Tensor, " W"]) -> Float[Tensor, "W H"]:
    return states.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, states.shape[-1]))[:, 0]


class _Scale:
    """The factor of a gradient, on its device; set by `_Scaled`, read by `_Unscaled`, which runs later in the backward pass."""

    factor: Tensor


class _Scaled(torch.autograd.Function):
    """The identity; its gradient is scaled so that the absolute values sum to between half of `GRADIENT_SUM` and all of it."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, scale: _Scale) -> Tensor:
        ctx.scale = scale
        return values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.float()
        # A power of two changes no digits. The bounds keep the factor and its inverse in range for a gradient of zero.
        total = grad.abs().sum(dtype=torch.float64).clamp(1e-30, 1e30)
        ctx.scale.factor = (GRADIENT_SUM / total).log2().floor().exp2().float()
        return grad * ctx.scale.factor, None


class _Unscaled(torch.autograd.Function):
    """The identity; its gradient is divided by the factor of `_Scaled`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, scale: _Scale) -> Tensor:
        ctx.scale = scale
        return values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.float() / ctx.scale.factor, None


WORD_DEVIATION = 0.1
"""of word embeddings at the start: about the size of a fresh LSTM's states"""

LONGEST_AFFIX = 4
MIN_AFFIX_FORMS = 2
"""an affix of one training form says nothing that the form does not say"""


class AffixCodes(nn.Module):
    """Numbers of the shapes, prefixes and suffixes of words; the same characters give the same number."""

    code_points: Int[Tensor, " C"]
    lowered: Int[Tensor, " C"]
    kinds: Int[Tensor, " C"]

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        # Padding and unknown come first. What the vocabulary says need not be saved.
        characters = list(vocabulary.character_counts)
        values = {
            "code_points": [0, 1, *map(ord, characters)],
            "lowered": [0, 1, *(ord(character.lower()[0]) for character in characters)],
            "kinds": [0, 0, *map(_kind, characters)],
        }
        for name, numbers in values.items():
            self.register_buffer(name, torch.tensor(numbers, device="cpu"), persistent=False)

    def forward(self, character_ids: Int[Tensor, "W C"], lengths: Int[Tensor, " W"]) -> Int[Tensor, "W F"]:
        """Of shape, prefixes and suffixes, from short to long: positive numbers; 0 for affixes longer than the word."""
        character_ids = F.pad(character_ids, (0, LONGEST_AFFIX))
        found = [self._shapes(character_ids, lengths)]
        characters = self.lowered[character_ids]
        positions = torch.arange(LONGEST_AFFIX, device=lengths.device)
        from_end = characters.gather(1, (lengths[:, None] - 1 - positions).clamp(min=0))
        for side, ordered in enumerate((characters, from_end), 1):
            code = torch.full_like(lengths, side)
            for index in range(LONGEST_AFFIX):
                code = _extended(code, ordered[:, index])
                found.append(torch.where(lengths > index, code, 0))
        return torch.stack(found, dim=-1)

    def words(self, character_ids: Int[Tensor, "W C"], lengths: Int[Tensor, " W"]) -> Int[Tensor, "W 2"]:
        """Of whole words, as they are written and in lower case."""
        found = []
        for side, values in enumerate((self.code_points, self.lowered), 3):
            code = torch.full_like(lengths, side)
            for index, characters in enumerate(values[character_ids].unbind(1)):
                code = torch.where(lengths > index, _extended(code, characters), code)
            found.append(code)
        return torch.stack(found, dim=-1)

    def _shapes(self, character_ids: Int[Tensor, "W C"], lengths: Int[Tensor, " W"]) -> Int[Tensor, " W"]:
        """What kind a word's first character is, and of each kind whether some or all of its characters are."""
        kinds = self.kinds[character_ids]
        is_there = torch.arange(character_ids.shape[1], device=lengths.device) < lengths[:, None]
        code = kinds[:, 0] + 1
        for kind in range(1, NUM_KINDS):
            is_kind = kinds == kind
            code = code * 3 + (is_kind & is_there).any(1).long() + (is_kind | ~is_there).all(1).long()
        return code


def _extended(code: Int[Tensor, " W"], characters: Int[Tensor, " W"]) -> Int[Tensor, " W"]:
    # 40 bits, so that no product overflows.
    return (code * 5_000_011 + characters) & 0xFFFFFFFFFF


class Affixes(nn.Module):
    """The sum of the embeddings of a word's prefixes and suffixes, in lower case, and of its shape; ours, not the paper's.

    That is what feature-based taggers see of a spelling. An affix is known by a code, a hash of its characters, and those that
    `MIN_AFFIX_FORMS` training forms share have an embedding; all others share row 0, which is zero. In training some are hidden.
    """

    keys: Int[Tensor, " A"]

    def __init__(self, vocabulary: Vocabulary, *, width: int, dropout: float, max_characters: int) -> None:
        super().__init__()
        self.width, self.dropout, self.max_characters = width, dropout, max_characters
        self.codes = AffixCodes(vocabulary)
        codes = _of_training_forms(self._codes, vocabulary)
        distinct, counts = codes[codes > 0].unique(return_counts=True)
        self.register_buffer("keys", distinct[counts >= MIN_AFFIX_FORMS], persistent=False)
        self.embedding = nn.Embedding(len(self.keys) + 1, width, padding_idx=0)
        # What was hardly seen says hardly anything.
        nn.init.zeros_(self.embedding.weight)

    def forward(self, character_ids: Int[Tensor, "W C"], lengths: Int[Tensor, " W"]) -> Float[Tensor, "W D"]:
        """The vectors of distinct words, of which in training some affixes are hidden."""
        rows = self.rows(character_ids, lengths)
        if self.training and self.dropout:
            rows = torch.where(torch.rand(rows.shape, device=rows.device) < self.dropout, 0, rows)
        return self.embedding(rows).sum(-2)

    def vectors_of(self, words: Sequence[str], ids: Mapping[str, int]) -> Float[Tensor, "W D"]:
        """The same for words that no batch has, with nothing hidden; ``ids`` are those of characters."""
        return self.embedding(self.rows(*_spelled(words, ids))).sum(-2)

    def rows(self, character_ids: Int[Tensor, "W C"], lengths: Int[Tensor, " W"]) -> Int[Tensor, "W F"]:
        """The rows of every word's shape, prefixes and suffixes, from short to long."""
        return _places(self.keys, self._codes(character_ids, lengths))

    def _codes(self, character_ids: Int[Tensor, "W C"], lengths: Int[Tensor, " W"]) -> Int[Tensor, "W F"]:
        return self.codes(*shorten(character_ids, lengths, self.max_characters))


FEATURE_DEVIATION = 0.01


class WordFeatures(nn.Module):
    """For every place of a window, the sum of the state vectors of a word's features there; ours, not the paper's.

    They are what feature-based taggers see: of a word itself its form, its form in lower case, shape, prefixes and suffixes; of its
    neighbours the form in lower case, shape and suffix of three characters; of words further away the form in lower case. Of
    neighbours, more features made results worse. Features that fewer than ``min_count`` training words have share row 0, which is zero.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, width: int, radius: int, max_characters: int, min_count: int = 1
    ) -> None:
        super().__init__()
        self.width, self.radius, self.max_characters = width, radius, max_characters
        self.codes = AffixCodes(vocabulary)
        codes = _of_training_forms(self._codes, vocabulary)
        form_counts = torch.tensor([*vocabulary.form_counts.values()], dtype=torch.int64, device="cpu")
        self.tables = nn.ModuleList()
        for distance in range(radius + 1):
            keys = _frequent(codes[:, self.columns(distance)], form_counts, min_count)
            self.register_buffer(f"keys{distance}", keys, persistent=False)
            table = nn.Embedding(len(keys) + 1, (2 if distance else 1) * width, padding_idx=0)
            _draw(table, FEATURE_DEVIATION)
            self.tables.append(table)

    def keys(self, distance: int) -> Int[Tensor, " A"]:
        """The codes of the features of words at this distance, ascending; the first has row 1."""
        keys: Tensor = getattr(self, f"keys{distance}")
        return keys

    @staticmethod
    def columns(distance: int) -> list[int]:
        """Of the codes: written form, lower case, shape, prefixes, suffixes."""
        if distance == 0:
            return list(range(3 + 2 * LONGEST_AFFIX))
        return [1, 2, 2 + LONGEST_AFFIX + 3] if distance == 1 else [1]

    def _codes(self, character_ids: Int[Tensor, "W C"], lengths: Int[Tensor, " W"]) -> Int[Tensor, "W F"]:
        shortened = shorten(character_ids, lengths, self.max_characters)
        return torch.cat([self.codes.words(*shortened), self.codes(*shortened)], dim=-1)

    def rows(self, character_ids: Int[Tensor, "W C"], lengths: Int[Tensor, " W"]) -> Int[Tensor, "W F"]:
        """The rows of every word's features: those of the table of distance 0, then those of distance 1, and so on."""
        codes = self._codes(character_ids, lengths)
        found = []
        for distance in range(self.radius + 1):
            # Column by column: a list as an index would be copied to the device, which cannot be recorded.
            wanted = torch.stack([codes[:, column] for column in self.columns(distance)], dim=-1)
            found.append(_places(self.keys(distance), wanted))
        return torch.cat(found, dim=-1)

    def forward(self, rows: Int[Tensor, "W F"]) -> Float[Tensor, "W P"]:
        """The vectors of distinct words for all places of a window, from its first to its last, concatenated."""
        before: list[Tensor] = []
        after: list[Tensor] = []
        for distance, part in enumerate(
            rows.split([len(self.columns(each)) for each in range(self.radius + 1)], dim=-1)
        ):
            vectors = self.tables[distance](part).sum(-2)
            after.append(vectors[:, : self.width])
            if distance:
                before.insert(0, vectors[:, self.width :])
        return torch.cat([*before, *after], dim=-1)

    def vectors_of(self, words: Sequence[str], ids: Mapping[str, int]) -> Float[Tensor, "W P"]:
        """The same for words that no batch has; ``ids`` are those of characters."""
        return self(self.rows(*_spelled(words, ids)))


def _frequent(codes: Int[Tensor, "W F"], form_counts: Int[Tensor, " W"], min_count: int) -> Int[Tensor, " K"]:
    """The positive codes that at least ``min_count`` words have, ascending."""
    distinct, places = codes.unique(return_inverse=True)
    counts = torch.zeros_like(distinct).index_add_(0, places.flatten(), form_counts.repeat_interleave(codes.shape[1]))
    return distinct[(distinct > 0) & (counts >= min_count)]


def _of_training_forms(codes: Callable[[Tensor, Tensor], Tensor], vocabulary: Vocabulary) -> Int[Tensor, "W F"]:
    """The codes of all training forms, on the CPU.

    The sizes of tables depend on them, while networks whose parameters are only counted are made on a device without memory.
    """
    with torch.device("cpu"):
        return codes(*_spelled(list(vocabulary.form_counts), vocabulary.character_ids))


def _spelled(words: Sequence[str], ids: Mapping[str, int]) -> tuple[Int[Tensor, "W C"], Int[Tensor, " W"]]:
    spellings = [torch.tensor([ids.get(character, UNKNOWN_ID) for character in word]) for word in words]
    padded = pad_sequence(spellings, batch_first=True).long() if words else torch.zeros(0, 0, dtype=torch.int64)
    return padded, torch.tensor([*map(len, words)], dtype=torch.int64)


def _places(keys: Int[Tensor, " K"], wanted: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """The positions of ``wanted`` among the ascending ``keys``, counted from 1; 0 for those not among them."""
    if not len(keys):
        return torch.zeros_like(wanted)
    places = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return torch.where(keys[places] == wanted, places + 1, 0)


NUM_KINDS = 5


def _kind(character: str) -> int:
    """Lower case 1, upper case 2, digits 3, marks 4; 0 for letters without case."""
    if character.isalpha():
        return 1 if character.islower() else 2 if character.isupper() else 0
    return 3 if character.isdigit() else 4


class WordEncoder(Encoder):
    """Base class of encoders that learn their own words; subclasses add context.

    `word_vectors` sees one word at a time; `forward` also accepts its results (`known_words.WordRows`).
    """

    def __init__(self, config: EncoderConfig, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.width = config.width
        self.features: WordFeatures | None = None
        self.word_dropout = config.word_dropout
        self.words = nn.Embedding(vocabulary.num_form_ids, config.word_width, padding_idx=PADDING_ID)
        if config.word_width:
            nn.init.normal_(self.words.weight, std=WORD_DEVIATION)
        self.characters = (
            CharacterLSTM(
                vocabulary.num_character_ids,
                width=config.character_width,
                hidden=config.character_hidden,
                max_characters=config.max_characters,
            )
            if config.character_hidden
            else None
        )
        self.affixes = (
            Affixes(
                vocabulary,
                width=config.affix_width,
                dropout=config.affix_dropout,
                max_characters=config.max_characters,
            )
            if config.affix_width
            else None
        )
        self.embedding_dropout = nn.Dropout(config.embedding_dropout)
        self.spelling_width = sum(part.width for part in (self.characters, self.affixes) if part is not None)
        self.embedding_width = config.word_width + self.spelling_width

    @property
    @abc.abstractmethod
    def vector_width(self) -> int:
        """The width of the results of `word_vectors`."""

    @abc.abstractmethod
    def word_vectors(self, form_ids: Int[Tensor, " W"], spellings: Float[Tensor, "W S"]) -> Float[Tensor, "W E"]:
        """Vectors of words without context or dropout; ``spellings`` have `spelling_width` columns, and then those of features."""

    def embed_units(
        self, batch: Batch, form_ids: Int[Tensor, " *units"], word_rows: Int[Tensor, " *units"]
    ) -> Float[Tensor, "*units E"]:
        """Words and their spellings, some of them hidden in training; ``word_rows`` index the batch's characters."""
        words = self.words(self._with_unknown_words(form_ids))
        parts = [
            part(batch.character_ids, batch.character_lengths)
            for part in (self.characters, self.affixes)
            if part is not None
        ]
        if not parts:
            return self.embedding_dropout(words)
        spellings = torch.cat([part.to(parts[0].dtype) for part in parts], dim=-1)
        # An embedding, not indexing: its gradient is summed in a fixed order.
        spellings = nn.functional.embedding(word_rows, spellings)
        return self.embedding_dropout(torch.cat([words.to(spellings.dtype), spellings], dim=-1))

    def _with_unknown_words(self, form_ids: Int[Tensor, " *units"]) -> Int[Tensor, " *units"]:
        if not self.training or self.word_dropout == 0:
            return form_ids
        is_hidden = torch.rand(form_ids.shape, device=form_ids.device) < self.word_dropout
        return torch.where(is_hidden, UNKNOWN_ID, form_ids)


@torch.no_grad()
def _draw(table: nn.Embedding, deviation: float) -> None:
    """Draw initial embeddings; row 0, that of everything unknown, is zero."""
    nn.init.normal_(table.weight, std=deviation)
    table.weight[0] = 0


class NeighbourPairs(nn.Module):
    """For every unit, the embeddings of (previous unit, unit) and (unit, next unit); ours, not the paper's.

    Padding stands for the ends of a sentence. Pairs that are not in the vocabulary share row 0, which is zero.
    """

    keys: Int[Tensor, " P"]

    def __init__(
        self, vocabulary: Vocabulary, *, width: int, dropout: float, deviation: float = WORD_DEVIATION
    ) -> None:
        super().__init__()
        self.num_forms = vocabulary.num_form_ids
        keys = sorted(first * self.num_forms + second for first, second in vocabulary.pairs)
        # Derived from the vocabulary, so it is not saved.
        self.register_buffer("keys", torch.tensor(keys, dtype=torch.int64), persistent=False)
        self.embeddings = nn.Embedding(len(keys) + 1, width, padding_idx=0)
        _draw(self.embeddings, deviation)
        self.dropout = dropout
        self.width = 2 * width

    def embed(
        self, batch: Batch, layout: Layout, is_hidden: Bool[Tensor, "B N"] | None = None
    ) -> Float[Tensor, "*units E"]:
        """Both embeddings of every unit of a batch; hidden units are in no pair."""
        return self(layout.pack(self.rows(batch, is_hidden)))

    def rows(self, batch: Batch, is_hidden: Bool[Tensor, "B N"] | None = None) -> Int[Tensor, "B N 2"]:
        """Rows of the table: of the pair that ends at each unit, and of the pair that starts there."""
        num_units = batch.form_ids.shape[1]
        forms = torch.where(unit_mask(batch.lengths, num_units), batch.form_ids, PADDING_ID)
        if is_hidden is not None:
            forms = torch.where(is_hidden, UNKNOWN_ID, forms)
        bordered = F.pad(forms, (1, 1), value=PADDING_ID)
        pairs = _places(self.keys, bordered[:, :-1] * self.num_forms + bordered[:, 1:])
        return torch.stack([pairs[:, :-1], pairs[:, 1:]], dim=-1)

    def forward(self, rows: Int[Tensor, "*units 2"]) -> Float[Tensor, "*units E"]:
        """Both embeddings, concatenated; in training some pairs are hidden."""
        if self.training and self.dropout:
            rows = torch.where(torch.rand(rows.shape, device=rows.device) < self.dropout, 0, rows)
        return self.embeddings(rows).flatten(-2)
