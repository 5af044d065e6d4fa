"""`Tagger`: sentences in, labels out, with NumPy and ONNX Runtime."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from diffusion_mf.data.files import StrPath
from diffusion_mf.data.label_schemes import LabelScheme, Span, SpanCalibration, scored_spans
from diffusion_mf.data.sentence import with_normalised_handles
from diffusion_mf.errors import InputError, quoted
from diffusion_mf.onnx import bits
from diffusion_mf.onnx.decoding import LabelPrinter, SequenceDecoder
from diffusion_mf.onnx.folder import ENCODER, SCORES, STEP, WORDS, ExportedModel, read_folder, unusable
from diffusion_mf.onnx.words import WordTable

WINDOW_UNITS = 160_000
MAX_WINDOW_ITEMS = 4096
"""how far sentences are read ahead, so that those of similar length share a batch"""
_TINY = np.finfo(np.float32).tiny


class TaggedSentence(NamedTuple):
    """The labels of a sentence with their scores and spans."""

    units: tuple[str, ...]
    labels: list[str]
    scores: list[float]
    """the calibrated marginal probability of each label; 0 for a bit code without a label"""
    spans: list[Span]
    """the complete spans, in order; none for labels without boundaries"""


class _Graph:
    """An ONNX graph; takes and returns arrays by name, and ignores those that it has no use for."""

    def __init__(self, content: bytes, threads: int | None) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise InputError(
                "an exported model needs ONNX Runtime", remedy="pip install onnxruntime, or 'diffusion-mf[onnx]'"
            ) from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        # Threads that spin while they wait would take the cores from those of the next graph.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._outputs = [each.name for each in self._session.get_outputs()]

    def __call__(self, **arrays: np.ndarray) -> dict[str, np.ndarray]:
        found = self._session.run(None, {name: arrays[name] for name in self._inputs})
        return dict(zip(self._outputs, found, strict=True))


class _Scores(NamedTuple):
    """What a model says about a batch."""

    marginals: np.ndarray
    unary: np.ndarray
    transition: np.ndarray | None = None
    bits: np.ndarray | None = None


class Tagger:
    """Labels sentences with an exported model; threads may share one."""

    def __init__(self, model: ExportedModel, *, threads: int | None = None) -> None:
        self.manifest = model.manifest
        self._graphs = {name: _Graph(content, threads) for name, content in model.graphs.items()}
        self._words = WordTable(model, self._graphs[WORDS])
        self._arrays = model.arrays
        self._decode = SequenceDecoder(self.manifest)
        self._printer = LabelPrinter(self.manifest)
        self._own_names = [*self.manifest["labels"], self.manifest["no_label"]]
        self._scheme = LabelScheme(self.manifest["scheme"])
        self._span_calibration = SpanCalibration(*self.manifest["span_calibration"])
        self._turn = threading.Lock()

    @classmethod
    def load(cls, folder: StrPath, *, threads: int | None = None) -> Tagger:
        """Read a folder that ``dmf export`` wrote; ``threads`` is the number of threads, by default one per core."""
        model = read_folder(folder)
        try:
            return cls(model, threads=threads)
        except InputError:
            raise
        except Exception:  # those of ONNX Runtime have no other class in common
            raise unusable(folder) from None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of results."""
        return tuple(self._printer.names[:-1])

    def tag(self, sentences: Iterable[Sequence[str]]) -> list[TaggedSentence]:
        """Label ``sentences``, each a sequence of units (for characters, a string is enough)."""
        return list(self.stream(sentences))

    def stream(self, sentences: Iterable[Sequence[str]]) -> Iterator[TaggedSentence]:
        """`tag`, one result after the other in the order given; looks ahead no further than a window of sentences."""
        if isinstance(sentences, str) or not isinstance(sentences, Iterable):
            raise InputError(f"the sentences are {quoted(sentences)}", remedy='give a list such as [["a", "b"]]')
        window: list[tuple[str, ...]] = []
        num_units = 0
        for number, sentence in enumerate(sentences, 1):
            window.append(self._units(sentence, number))
            num_units += len(window[-1])
            if num_units >= WINDOW_UNITS or len(window) >= MAX_WINDOW_ITEMS:
                yield from self._tag_window(window)
                window, num_units = [], 0
        yield from self._tag_window(window)

    def _units(self, sentence: Sequence[str], number: int) -> tuple[str, ...]:
        if isinstance(sentence, str) and self.manifest["task"] != "seg-pos":
            raise InputError(f"sentence {number} is a string", remedy='split it into words, such as ["a", "b"]')
        if not isinstance(sentence, Iterable):
            raise InputError(f"sentence {number} is {quoted(sentence)}", remedy='give words, such as ["a", "b"]')
        units = tuple(sentence)
        for position, unit in enumerate(units):
            if not isinstance(unit, str) or not unit:
                raise InputError(
                    f"unit {position} of sentence {number} is {quoted(unit)}", remedy="give strings that are not empty"
                )
        longest = self.manifest["longest"]
        if longest is not None and len(units) > longest:
            raise InputError(f"sentence {number} has more than {longest:,} units", remedy="split it")
        return units

    def _tag_window(self, window: list[tuple[str, ...]]) -> list[TaggedSentence]:
        results = [TaggedSentence((), [], [], [])] * len(window)
        # The longest first; sentences of similar length need little padding.
        order = sorted((index for index, units in enumerate(window) if units), key=lambda index: -len(window[index]))
        while order:
            size = max(1, self.manifest["batch_units"] // len(window[order[0]]))
            members, order = order[:size], order[size:]
            for index, result in zip(members, self._tag_batch([window[index] for index in members]), strict=True):
                results[index] = result
        return results

    def _tag_batch(self, sentences: list[tuple[str, ...]]) -> Iterator[TaggedSentence]:
        lengths = np.array([*map(len, sentences)], dtype=np.int64)
        is_unit = np.arange(lengths.max()) < lengths[:, None]
        normalise = with_normalised_handles if self.manifest["normalise_handles"] else tuple
        words: Iterable[str] = itertools.chain.from_iterable(map(normalise, sentences))
        if self.manifest["lowercase"]:
            words = (word.lower() for word in words)
        rows = np.zeros(is_unit.shape, dtype=np.int64)
        with self._turn:
            rows[is_unit] = self._words.look_up(list(words))
            table, form_ids = self._words.vectors, self._words.form_ids[rows]
        pair_rows = self._words.pair_rows(form_ids)
        inputs: dict[str, np.ndarray] = {"table": table, "rows": rows, "pair_rows": pair_rows, "is_unit": is_unit}
        found = self._scores(inputs, form_ids)
        if found.bits is not None and self.manifest["decoder"] == "native":
            label_ids = bits.decode_native(found.bits, len(self.manifest["labels"]))
        else:
            label_ids = self._decode(found.unary, found.transition, lengths)
        probabilities = self._calibrated(found.marginals)
        own = np.take_along_axis(probabilities, np.maximum(label_ids, 0)[..., None], axis=-1)[..., 0]
        own_scores = np.where(label_ids < 0, 0, own)
        names, scores = self._printer(label_ids, probabilities)
        for units, *values in zip(
            sentences, label_ids.tolist(), own_scores.tolist(), names.tolist(), scores.tolist(), strict=True
        ):
            ids, confidences, printed, printed_scores = (each[: len(units)] for each in values)
            own_names = [self._own_names[index] for index in ids]
            spans = scored_spans(own_names, confidences, self._scheme, calibration=self._span_calibration)
            yield TaggedSentence(units, [self._printer.names[index] for index in printed], printed_scores, spans)

    def _scores(self, inputs: dict[str, np.ndarray], form_ids: np.ndarray) -> _Scores:
        process = self.manifest["process"]
        if process == "direct":
            found = self._graphs[SCORES](**inputs)
            return _Scores(found["marginals"], found["unary"], found.get("transition", self._arrays.get("transition")))
        conditions = self._graphs[ENCODER](**inputs) | {"is_unit": inputs["is_unit"]}
        return self._denoised_bits(conditions, form_ids) if process == "bits" else self._denoised(conditions)

    def _denoised(self, conditions: dict[str, np.ndarray]) -> _Scores:
        """Algorithm 1, from uniform beliefs; ``conditions`` are what all calls share."""
        num_labels = len(self.manifest["labels"])
        beliefs = np.full((*conditions["is_unit"].shape, num_labels), 1 / num_labels, dtype=np.float32)
        marginals = None
        for t, s in itertools.pairwise(self.manifest["schedule"]):
            found = self._graphs[STEP](beliefs=beliefs, t=_step(t), s=_step(s), **conditions)
            beliefs = found["new_beliefs"]
            if marginals is None or self.manifest["scores_from"] == "last":
                marginals = found["marginals"]
        assert marginals is not None
        if "unary" in found:  # the last call's scores, for Viterbi
            return _Scores(marginals, found["unary"], found.get("transition", self._arrays.get("transition")))
        return _Scores(marginals, np.log(np.maximum(beliefs, _TINY)))

    def _denoised_bits(self, conditions: dict[str, np.ndarray], form_ids: np.ndarray) -> _Scores:
        def denoise(noisy: np.ndarray, previous: np.ndarray, t: int) -> np.ndarray:
            return self._graphs[STEP](noisy=noisy, previous=previous, t=_step(t), **conditions)["clean"]

        codes = self._arrays["codes"]
        found = bits.ddim(self.manifest, denoise, form_ids, codes.shape[1])
        unary = bits.unary_scores(found, codes, self.manifest["distance_temperature"])
        return _Scores(_softmax(unary), unary, bits=found)

    def _calibrated(self, marginals: np.ndarray) -> np.ndarray:
        marginals = np.maximum(marginals, _TINY)
        temperature = self.manifest["temperature"]
        if temperature == 1:
            return marginals / marginals.sum(-1, keepdims=True)
        return _softmax(np.log(marginals) / np.float32(temperature))


def _step(t: int) -> np.ndarray:
    return np.array([t], dtype=np.int64)


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)
