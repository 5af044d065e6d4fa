"""Units split into subwords, batches of them, and windows over long sentences."""

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
    """Subwords ``starts[w]`` … ``ends[w] − 1`` are encoded together; subword j takes its state from window ``owner[j]``."""

    starts: Integers
    ends: Integers
    owner: Integers


def plan_windows(counts: Integers, *, capacity: int, stride: int) -> Windows:
    """Split units of ``counts`` subwords into windows of at most ``capacity`` subwords, special tokens not counted.

    Windows start ``stride`` apart, or a little less, so that they start with a unit where possible. A unit takes its state
    from the window in which it is furthest from an edge (the ends of the sentence are not edges), the first one in case of
    ties. If no window holds the whole unit, each of its subwords takes its state from its own best window.
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
    """Assign to ``window`` what lies further from its edges than from those of the windows before it."""
    is_better = distance > nearest
    owner[is_better] = window
    nearest[is_better] = distance[is_better]


MAX_KNOWN_UNITS = 1_000_000
"""limit on the number of cached units: memory must stay bounded, whatever is streamed through a tagger"""

_HALF_PAIR = re.compile("[\ud800-\udfff]")


class SubwordIds:
    """The subword ids of each unit, as the tokenizer splits it in the middle of a text.

    Byte-level tokenizers distinguish words from parts of words by the space before them, so every unit gets one
    (``add_prefix_space``). A unit without subwords (blanks, control characters) becomes the unknown token; if the
    tokenizer has none, the unit stays without. Text that looks like a special token is treated as text. Lone surrogates,
    which tokenizers refuse, become replacement characters.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.padding_id: int = 0 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
        self.unknown_id: int | None = None if tokenizer.unk_token_id is None else int(tokenizer.unk_token_id)
        self._space = " " if _is_byte_level(tokenizer) else ""
        self._known: dict[str, tuple[int, ...]] = {}
        # A Hugging Face tokenizer must not be used by two threads at once.
        self._lock = threading.Lock()
        self.before, self.after = self._special_ids()

    def learn(self, units: Iterable[str]) -> None:
        """Tokenize the distinct ``units`` that are not cached yet, all at once."""
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
        """The ids of all subwords, and the number of subwords of each unit."""
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
        """The special tokens before and after a sentence, found by encoding one with and without them."""
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
"""padded windows have a multiple of this length: good for tensor cores, and fewer different shapes"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubwordBatch:
    """Windows of subwords, and which states are pooled for which unit.

    The state at position ``places[p]`` = w·S + s goes to unit ``units[p]`` = b·N + i with weight ``shares[p]``. First-subword
    pooling is a mean over one state. Padding, and units that the encoder does not see, get no state.
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
        """The mean of each unit's states; 0 if it has none. No position is pooled twice, and nothing waits for the device."""
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
    """How long sentences are encoded."""

    pooling: Literal["first", "mean"]
    on_long: OnLong
    truncate_units: int
    max_subwords: int | None
    """of a window, special tokens included; None: no limit"""
    stride: int | None


class SubwordPreparer:
    """Builds a `SubwordBatch` from sentences, and counts the sentences that were too long.

    Sentences passed to `study` are tokenized once and cached. Copies of a model share the cache.
    """

    def __init__(self, subword_ids: SubwordIds, settings: WindowSettings) -> None:
        self.subword_ids = subword_ids
        self.num_long = 0
        """number of sentences given to `__call__` that exceed the encoder's limit"""
        self._studied: dict[tuple[str, ...], _Cut] = {}
        self._settings = settings
        self._num_special = len(subword_ids.before) + len(subword_ids.after)
        if settings.max_subwords is not None and settings.max_subwords <= self._num_special:
            raise InputError(
                f"windows of {settings.max_subwords} subwords hold only the {self._num_special} special tokens",
                remedy="set encoder.max_subwords higher",
            )
        if settings.stride is not None and self.capacity is not None and settings.stride > self.capacity:
            raise InputError(
                f"a stride of {settings.stride} would skip subwords between windows of {self.capacity}",
                remedy="set encoder.stride lower",
            )

    def __deepcopy__(self, memo: object) -> SubwordPreparer:
        return self

    @property
    def capacity(self) -> int | None:
        """Subwords per window, special tokens not counted; None: no limit."""
        limit = self._settings.max_subwords
        return None if limit is None else limit - self._num_special

    @property
    def settings(self) -> WindowSettings:
        """How long sentences are encoded."""
        return self._settings

    def set_on_long(self, on_long: OnLong) -> None:
        """Change how long sentences are treated."""
        self._settings = dataclasses.replace(self._settings, on_long=on_long)
        self._studied = {}

    def study(self, sentences: Iterable[Sentence]) -> StudyCounts:
        """Tokenize ``sentences`` and cache the result, since they will be needed again."""
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
        """The number of subwords of each whole sentence, special tokens included; 0 for an empty one."""
        self.subword_ids.learn(unit for sentence in sentences for unit in sentence.units)
        counts = [len(self.subword_ids.of_units(sentence.units)[0]) for sentence in sentences]
        return [
            count + max(1, self._num_special) if sentence.units else 0
            for count, sentence in zip(counts, sentences, strict=True)
        ]

    def study_digest(self, sentences: Iterable[Sentence]) -> str:
        """A digest of the subwords of ``sentences`` and their units."""
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
                f"a sentence of {len(units)} units ({' '.join(units[:4])} …) has {len(ids)} subwords, which exceeds the "
                f"encoder's limit of {capacity}",
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
        # Not above the encoder's limit, which may not be a multiple; at least one position, since models need one.
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
                # Attention to no position at all would give NaN.
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
    """Statistics of the sentences of a corpus."""

    num_sentences: int
    num_long: int
    num_units: int
    num_unknown: int
    """number of subwords that are the unknown token"""
