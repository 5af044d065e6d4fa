"""Units cut into subwords, batches of them, and windows over what is too long."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from numpy.typing import NDArray
from torch import Tensor

from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError

Integers = NDArray[np.int64]


class Windows(NamedTuple):
    """Subwords ``starts[w]`` … ``ends[w] − 1`` are encoded together; ``owner[j]`` is the window of subword j's state."""

    starts: Integers
    ends: Integers
    owner: Integers


def plan_windows(counts: Integers, *, capacity: int, stride: int) -> Windows:
    """Cut units of ``counts`` subwords into windows of at most ``capacity`` subwords, special ones not counted.

    Windows begin ``stride`` after each other, or a little less, so that they begin with a unit where they can. A unit takes
    its state from the window where it is furthest from an edge (the sentence's own ends are none), the first among equals. One
    that no window holds as a whole takes the state of each subword from that subword's best window.
    """
    total = int(counts.sum())
    if total <= capacity:
        return Windows(np.zeros(1, np.int64), np.array([total]), np.zeros(total, np.int64))
    if not 1 <= stride <= capacity:
        raise ValueError(f"windows of {capacity} subwords need a stride from 1 to {capacity}, not {stride}")
    unit_ends = counts.cumsum()
    unit_starts = unit_ends - counts
    starts = _starts(unit_starts[counts > 0], total, capacity, stride)
    ends = np.minimum(starts + capacity, total)
    owner, nearest = np.zeros(total, np.int64), np.full(total, -1)
    unit_owner, unit_nearest = np.zeros(len(counts), np.int64), np.full(len(counts), -1)
    for window, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):

        def to_edge(firsts: Integers, lasts: Integers, start: int = start, end: int = end) -> Integers:
            left = firsts - start if start > 0 else np.full(len(firsts), total)
            return np.minimum(left, end - 1 - lasts) if end < total else left

        inside = slice(start, end)
        positions = np.arange(start, end)
        _take(owner[inside], nearest[inside], to_edge(positions, positions), window)
        whole = slice(np.searchsorted(unit_starts, start), np.searchsorted(unit_ends, end, side="right"))
        distance = to_edge(unit_starts[whole], unit_ends[whole] - 1)
        _take(unit_owner[whole], unit_nearest[whole], distance, window)
    is_whole = np.repeat(unit_nearest >= 0, counts)
    owner = np.where(is_whole, np.repeat(unit_owner, counts), owner)
    return Windows(starts, ends, owner)


def _starts(unit_starts: Integers, total: int, capacity: int, stride: int) -> Integers:
    starts = [0]
    while starts[-1] + capacity < total:
        aim = starts[-1] + stride
        aligned = int(unit_starts[np.searchsorted(unit_starts, aim, side="right") - 1])
        starts.append(aligned if aligned > starts[-1] else aim)
    return np.array(starts)


def _take(owner: Integers, nearest: Integers, distance: Integers, window: int) -> None:
    """Give ``window`` what lies further from its edges than from those of the windows before it."""
    is_better = distance > nearest
    owner[is_better] = window
    nearest[is_better] = distance[is_better]


MAX_KNOWN_UNITS = 1_000_000
"""distinct units kept; memory must be bounded, whatever is streamed through a tagger"""

_HALF_PAIR = re.compile("[\ud800-\udfff]")


class SubwordIds:
    """The ids of each unit, as the tokenizer cuts it in the middle of a text.

    Byte-level tokenizers tell words from parts of words by the space before them, so that every unit is given one
    (``add_prefix_space``). A unit that becomes no subword (blanks, control characters) becomes the unknown token; where the
    tokenizer has none, it stays without. What looks like a special token in a text is text. Halves of surrogate pairs, which
    tokenizers refuse, are replacement characters.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.padding_id: int = 0 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
        self.unknown_id: int | None = None if tokenizer.unk_token_id is None else int(tokenizer.unk_token_id)
        self._space = " " if _is_byte_level(tokenizer) else ""
        self._known: dict[str, tuple[int, ...]] = {}
        # A tokenizer of Hugging Face must not be used by two threads at once.
        self._lock = threading.Lock()
        self.before, self.after = self._special_ids()

    def learn(self, units: Iterable[str]) -> None:
        """Cut the distinct ``units`` that are not known yet, all at once."""
        with self._lock:
            distinct = dict.fromkeys(units)
            new = [unit for unit in distinct if unit not in self._known]
            if not new:
                return
            if len(self._known) + len(new) > MAX_KNOWN_UNITS:
                self._known = {}
                new = list(distinct)
            fallback = () if self.unknown_id is None else (self.unknown_id,)
            texts = [self._space + _HALF_PAIR.sub("\ufffd", unit) for unit in new]
            for unit, ids in zip(new, self._cut(texts), strict=True):
                self._known[unit] = tuple(ids) or fallback

    def of_units(self, units: tuple[str, ...]) -> tuple[Integers, Integers]:
        """The ids of all subwords, and how many of them each unit has."""
        known = self._known
        try:
            parts = [known[unit] for unit in units]
        except KeyError:
            self.learn(units)
            return self.of_units(units)
        counts = np.fromiter(map(len, parts), np.int64, len(parts))
        ids = np.fromiter((index for part in parts for index in part), np.int64, int(counts.sum()))
        return ids, counts

    def _cut(self, texts: list[str], *, special: bool = False) -> list[list[int]]:
        encoded = self.tokenizer(
            texts,
            add_special_tokens=special,
            split_special_tokens=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        return encoded["input_ids"]

    def _special_ids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What stands before and after a sentence, found by encoding one with and without."""
        for sample in ("a", "1", "."):
            (plain,), (framed,) = self._cut([sample]), self._cut([sample], special=True)
            for start in range(len(framed) - len(plain) + 1):
                if plain and framed[start : start + len(plain)] == plain:
                    return tuple(framed[:start]), tuple(framed[start + len(plain) :])
        return (), ()


def _is_byte_level(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return False
    return '"ByteLevel"' in json.dumps(json.loads(backend.to_str()).get("pre_tokenizer"))


OnLong = Literal["window", "error", "truncate"]

LENGTH_MULTIPLE = 8
"""of padded windows: tensor cores like it, and fewer different shapes"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubwordBatch:
    """Windows of subwords, and which of their states are pooled to which unit.

    The state at place ``places[p]`` = w·S + s goes to unit ``units[p]`` = b·N + i with the weight ``shares[p]``. First-subword
    pooling is a mean over one. Padding, and units that the encoder does not see, get nothing.
    """

    ids: Int64[Tensor, "W S"]
    is_subword: Bool[Tensor, "W S"]
    places: Int64[Tensor, " P"]
    units: Int64[Tensor, " P"]
    shares: Float32[Tensor, " P"]
    has_state: Bool[Tensor, "B N"]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> SubwordBatch:
        """The same on another device."""
        moved = {
            field.name: getattr(self, field.name).to(device, non_blocking=non_blocking)
            for field in dataclasses.fields(self)
        }
        return SubwordBatch(**moved)

    def pool(self, states: Float[Tensor, "W S D"]) -> Float32[Tensor, "B N D"]:
        """The mean of every unit's states; 0 where there is none. No place is pooled twice, and nothing waits for the device."""
        chosen = states.flatten(0, 1).index_select(0, self.places).float() * self.shares[:, None]
        pooled = chosen.new_zeros(self.has_state.numel(), states.shape[-1]).index_add(0, self.units, chosen)
        return pooled.unflatten(0, self.has_state.shape)


class _Cut(NamedTuple):
    """One sentence: its subwords, their windows, and which of them are pooled for each unit."""

    ids: Integers
    windows: Windows
    pooled: Integers
    """subwords of the sentence"""
    bag_sizes: Integers
    """of each unit"""
    is_long: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowSettings:
    """How sentences are laid out for an encoder."""

    pooling: Literal["first", "mean"]
    on_long: OnLong
    truncate_units: int
    max_subwords: int | None
    """of a window, special ones included; None: no limit"""
    stride: int | None


class SubwordPreparer:
    """Makes a `SubwordBatch` of sentences, and counts the sentences that were too long.

    Sentences that were `study`-ed are cut once and kept. Copies of a model share it.
    """

    def __init__(self, subword_ids: SubwordIds, settings: WindowSettings) -> None:
        self.subword_ids = subword_ids
        self.num_long = 0
        """sentences that did not fit the encoder, among those given to `__call__`"""
        self._studied: dict[tuple[str, ...], _Cut] = {}
        self._settings = settings
        self._num_special = len(subword_ids.before) + len(subword_ids.after)
        if settings.max_subwords is not None and settings.max_subwords <= self._num_special:
            raise InputError(
                f"windows of {settings.max_subwords} subwords hold nothing but the {self._num_special} special ones",
                remedy="set encoder.max_subwords higher",
            )
        if settings.stride is not None and self.capacity is not None and settings.stride > self.capacity:
            raise InputError(
                f"a stride of {settings.stride} would leave out subwords between windows of {self.capacity}",
                remedy="set encoder.stride lower",
            )

    def __deepcopy__(self, memo: object) -> SubwordPreparer:
        return self

    @property
    def capacity(self) -> int | None:
        """Subwords of a window, special ones not counted; None: no limit."""
        limit = self._settings.max_subwords
        return None if limit is None else limit - self._num_special

    @property
    def settings(self) -> WindowSettings:
        """How sentences are laid out."""
        return self._settings

    def set_on_long(self, on_long: OnLong) -> None:
        """Treat long sentences otherwise from now on."""
        self._settings = dataclasses.replace(self._settings, on_long=on_long)
        self._studied = {}

    def study(self, sentences: Iterable[Sentence]) -> StudyCounts:
        """Cut ``sentences`` and keep the result, for they will come again."""
        sentences = list(sentences)
        self.subword_ids.learn(unit for sentence in sentences for unit in sentence.units)
        num_long = num_units = num_unknown = 0
        for sentence in sentences:
            cut = self._studied.get(sentence.units)
            if cut is None:
                cut = self._studied[sentence.units] = self._cut(sentence.units)
            num_long += cut.is_long
            num_units += len(cut.bag_sizes)
            if self.subword_ids.unknown_id is not None:
                num_unknown += int((cut.ids == self.subword_ids.unknown_id).sum())
        return StudyCounts(len(sentences), num_long, num_units, num_unknown)

    def sizes(self, sentences: Sequence[Sentence]) -> list[int]:
        """The number of subwords of each sentence as it was given, special ones included; 0 without units."""
        self.subword_ids.learn(unit for sentence in sentences for unit in sentence.units)
        counts = [len(self.subword_ids.of_units(sentence.units)[0]) for sentence in sentences]
        return [
            count + max(1, self._num_special) if sentence.units else 0
            for count, sentence in zip(counts, sentences, strict=True)
        ]

    def study_digest(self, sentences: Iterable[Sentence]) -> str:
        """A name for the subwords of ``sentences`` and for which units they belong to."""
        digest = hashlib.sha256()
        for sentence in sentences:
            ids, counts = self.subword_ids.of_units(sentence.units)
            digest.update(counts.tobytes() + ids.tobytes() + b"\n")
        return digest.hexdigest()

    def __call__(self, sentences: Sequence[Sentence]) -> SubwordBatch:
        """The tensors of a batch."""
        new = [sentence.units for sentence in sentences if sentence.units not in self._studied]
        self.subword_ids.learn(unit for units in new for unit in units)
        cuts = [self._studied.get(sentence.units) or self._cut(sentence.units) for sentence in sentences]
        self.num_long += sum(cut.is_long for cut in cuts)
        return self._assemble(cuts)

    def _cut(self, units: tuple[str, ...]) -> _Cut:
        settings, capacity = self._settings, self.capacity
        ids, counts = self.subword_ids.of_units(units)
        is_long = capacity is not None and len(ids) > capacity
        if settings.on_long == "truncate":
            seen = counts[: settings.truncate_units]
            if capacity is not None:
                seen = seen[seen.cumsum() <= capacity]
            is_long = len(seen) < len(counts)
            counts = np.concatenate([seen, np.zeros(len(counts) - len(seen), np.int64)])
            ids = ids[: int(counts.sum())]
        elif is_long and settings.on_long == "error":
            raise InputError(
                f"a sentence of {len(units)} units ({' '.join(units[:4])} …) has {len(ids)} subwords, more than the "
                f"{capacity} that the encoder takes at once",
                remedy="split it, or set encoder.on_long (--on-long) to window or truncate",
            )
        if capacity is None:
            windows = plan_windows(counts, capacity=len(ids), stride=1)
        else:
            windows = plan_windows(counts, capacity=capacity, stride=settings.stride or max(1, capacity // 2))
        if settings.pooling == "mean":
            return _Cut(ids, windows, np.arange(len(ids)), counts, is_long)
        firsts = (counts.cumsum() - counts)[counts > 0]
        return _Cut(ids, windows, firsts, np.minimum(counts, 1), is_long)

    def _assemble(self, cuts: Sequence[_Cut]) -> SubwordBatch:
        before, after = self.subword_ids.before, self.subword_ids.after
        num_windows = sum(len(cut.windows.starts) for cut in cuts)
        longest = self._num_special + max(int((cut.windows.ends - cut.windows.starts).max()) for cut in cuts)
        # Not beyond the encoder's limit, which need not be a multiple; at least one place, for models cannot do with none.
        width = max(1, -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)
        if self._settings.max_subwords is not None:
            width = min(width, max(longest, self._settings.max_subwords))
        ids = np.full((num_windows, width), self.subword_ids.padding_id, np.int64)
        is_subword = np.zeros((num_windows, width), np.bool_)
        num_units = max(len(cut.bag_sizes) for cut in cuts)
        sizes = np.zeros((len(cuts), num_units), np.int64)
        places = []
        row = 0
        for index, cut in enumerate(cuts):
            starts, ends, owner = cut.windows
            for window, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True), row):
                inner = len(before) + end - start
                ids[window, : len(before)] = before
                ids[window, len(before) : inner] = cut.ids[start:end]
                ids[window, inner : inner + len(after)] = after
                # Attention to nothing at all would be no number.
                is_subword[window, : max(1, inner + len(after))] = True
            chosen = owner[cut.pooled]
            places.append((row + chosen) * width + len(before) + cut.pooled - starts[chosen])
            sizes[index, : len(cut.bag_sizes)] = cut.bag_sizes
            row += len(starts)
        flat_sizes = sizes.reshape(-1)
        return SubwordBatch(
            ids=torch.from_numpy(ids),
            is_subword=torch.from_numpy(is_subword),
            places=torch.from_numpy(np.concatenate(places)),
            units=torch.from_numpy(np.repeat(np.arange(len(flat_sizes)), flat_sizes)),
            shares=torch.from_numpy(np.repeat((1 / np.maximum(flat_sizes, 1)).astype(np.float32), flat_sizes)),
            has_state=torch.from_numpy(sizes > 0),
        )


class StudyCounts(NamedTuple):
    """What was found in the sentences of a corpus."""

    num_sentences: int
    num_long: int
    num_units: int
    num_unknown: int
    """subwords that are the unknown token"""
