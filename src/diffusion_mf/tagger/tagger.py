"""`Tagger`: a trained model with its vocabulary and labels, for use; sentences in, results out, in the same order."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import os
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import StrPath
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.decoding import DECODERS, DecoderInput, OutputLabels, k_best_of
from diffusion_mf.diffusion import Reading
from diffusion_mf.errors import InputError, quoted
from diffusion_mf.evaluation.calibration import SpanCalibration, calibrated
from diffusion_mf.model.hub import download, upload
from diffusion_mf.model.storage import HUB_PREFIX, StoredModel, load_model, pack_folder, save_model, unpack_folder
from diffusion_mf.plugins import import_plugins
from diffusion_mf.prediction.cpu import (
    CPU_BATCH_UNITS,
    ONE_THREAD_WORK,
    has_transformer,
    known_words,
    new_turn,
    num_multiplications,
    one_thread,
)
from diffusion_mf.prediction.devices import choose_device
from diffusion_mf.prediction.memory import DoesNotFitError, placed
from diffusion_mf.prediction.predictor import Predictor
from diffusion_mf.prediction.sentences import predict_sentences
from diffusion_mf.structures import InferenceSettings, LinearChain, Potentials
from diffusion_mf.tagger.requests import (
    Allowed,
    Clamp,
    PlacedClamp,
    Request,
    RequestReader,
    SentenceLike,
    in_documents,
    whole_number,
)
from diffusion_mf.tagger.results import Steps, TaggedSentence, tagged_sentences
from diffusion_mf.tagger.shipped import is_shipped, model_folder

if TYPE_CHECKING:
    from pandas import DataFrame

    from diffusion_mf.model import Prediction
    from diffusion_mf.networks.encoders import PretrainedEncoder
    from diffusion_mf.networks.pretrained.subwords import OnLong


Item = TypeVar("Item")

WINDOW_BATCHES = 8
"""how many batches of units are read ahead, so that sentences of similar length share a batch"""
TRAJECTORY_CALLS = 10
"""at least, of a model that makes fewer, unless a number is asked for"""
MOST_SEQUENCES = 10_000
"""what ``k_best`` may ask for"""
MAX_WINDOW_ITEMS = 4096
"""the maximum number of sentences read ahead, which bounds memory if sentences are short"""


def windows(
    items: Iterable[Item],
    num_units: Callable[[Item], int],
    *,
    budget: int,
    document: Callable[[Item], int] | None = None,
) -> Iterator[list[Item]]:
    """Split ``items`` into windows of about `WINDOW_BATCHES` × ``budget`` units, reading ahead no further than that.

    With ``document``, which gives an item's document (0: none), windows end only between documents, which may take one more item
    to see.
    """
    window: list[Item] = []
    total = 0
    is_full = False
    for item in items:
        if is_full and (document is None or document(item) != document(window[-1])):
            yield window
            window, total = [], 0
        window.append(item)
        total += num_units(item)
        # With a budget of 1 no sentences share a batch, so there is nothing to wait for.
        is_full = budget == 1 or total >= WINDOW_BATCHES * budget or len(window) >= MAX_WINDOW_ITEMS
        if is_full and (document is None or not document(item)):
            yield window
            window, total, is_full = [], 0, False
    if window:
        yield window


_NUM_UNITS: Callable[[Request], int] = operator.attrgetter("num_units")
_DOCUMENT: Callable[[Request], int] = operator.attrgetter("document")


class _Options(NamedTuple):
    """The options of one call of `Tagger.tag` or `Tagger.stream`."""

    calls: int | None
    decoder: str
    trajectory: bool
    marginals: bool
    budget: int
    output: OutputLabels
    k_best: int | None


class Tagger:
    """Labels sentences with a trained model.

    Results do not depend on how sentences are batched or ordered, except for ties: padding carries no information. Threads may
    share a tagger; they take turns.
    """

    def __init__(self, model: StoredModel, *, device: str | torch.device = "auto") -> None:
        self._model = model
        self.device = choose_device(device)
        self._labeller = placed(model.labeller, self.device).eval()
        self._predictor = Predictor(self._labeller, model.config, self.device)
        self._recall = model.config.recall
        self.num_in_documents = 0
        """how many sentences so far came in documents, if the model has recall"""
        # On a GPU, computing word representations again is cheaper than looking them up on the host.
        has_table = self.device.type == "cpu" and not self._predictor.is_packed
        self._words = known_words(model) if has_table else None
        self._most_units = CPU_BATCH_UNITS if self.device.type == "cpu" and has_transformer(model) else None
        self._own = OutputLabels(model.vocabulary.labels, model.scheme, model.scheme)
        self._output = OutputLabels(model.vocabulary.labels, model.scheme, model.output_scheme)
        self._span_calibration = SpanCalibration(*model.span_calibration)
        # The scores that a decoder gets are those of the last call; in a chain they determine the probability of any span.
        entry = model.config.system_entry
        self._has_chain = (
            entry.structure == "linear-chain"
            and model.scheme is not LabelScheme.PLAIN
            and not (entry.is_diffusion and model.config.inference.scores_from == "first")
        )
        self._separator = "" if model.config.task is Task.SEG_POS else " "
        self._read_requests = RequestReader(model.config.task, model.config.data, model.labeller.legality, self._output)
        self._one_thread_units = (
            ONE_THREAD_WORK // max(1, num_multiplications(model)) if self.device.type == "cpu" else 0
        )
        # The word cache and the recorded GPU graphs can serve only one window of sentences at a time.
        self._turn = new_turn()
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the lock, which belongs to one process."""
        return {name: value for name, value in self.__dict__.items() if name != "_turn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state with a new lock."""
        self.__dict__.update(state)
        self._turn = new_turn()
        self._process = os.getpid()

    @classmethod
    def load(cls, folder: StrPath, *, device: str | torch.device = "auto", plugins: Sequence[str] = ()) -> Tagger:
        """Read a model folder that `save` or ``dmf train`` wrote; ``auto`` uses a GPU if there is one.

        A name such as ``en-pos`` is a model that comes with the package (`shipped.shipped_models`), unless there is a folder of that
        name; ``hf:OWNER/NAME`` is a model on the Hugging Face hub. For any other name, the network is not used.
        ``plugins`` are modules, or paths of their files, to import for it: a model says which it needs, but only you may ask.
        """
        import_plugins(plugins)
        name = _name_of_model(folder)
        found = download(name) if name.startswith(HUB_PREFIX) else model_folder(name)
        return cls(load_model(found), device=device)

    @classmethod
    def from_pretrained(
        cls,
        name: StrPath,
        *,
        revision: str | None = None,
        device: str | torch.device = "auto",
        plugins: Sequence[str] = (),
    ) -> Tagger:
        """The model of a folder or of the package or, elsewhere, of the repository OWNER/NAME on the Hugging Face hub."""
        name = _name_of_model(name)
        is_here = os.path.exists(name) or is_shipped(name)
        folder = name if is_here else download(name, revision=revision)
        return cls.load(folder, device=device, plugins=plugins)

    def save(self, folder: StrPath) -> None:
        """Write a model folder that `load` reads."""
        save_model(folder, self._model)

    def to_bytes(self) -> bytes:
        """The files that `save` writes as one ZIP archive; `from_bytes` reads it. The same model gives the same bytes."""
        with tempfile.TemporaryDirectory(prefix="diffusion-mf-") as temporary:
            self.save(Path(temporary) / "model")
            return pack_folder(Path(temporary) / "model")

    @classmethod
    def from_bytes(cls, data: bytes, *, device: str | torch.device = "auto", plugins: Sequence[str] = ()) -> Tagger:
        """The tagger that `to_bytes` put into ``data``; runs no code of the model's, as `load` runs none."""
        if not isinstance(data, bytes):
            raise InputError(f"the model is {quoted(data)}", remedy="give the bytes that Tagger.to_bytes returned")
        with tempfile.TemporaryDirectory(prefix="diffusion-mf-") as temporary:
            unpack_folder(data, Path(temporary) / "model")
            return cls.load(Path(temporary) / "model", device=device, plugins=plugins)

    def __repr__(self) -> str:
        """What it is: system, task, labels, size and device."""
        config, labels = self._model.config, self.labels
        shown = ", ".join(labels) if len(labels) <= 8 else f"{', '.join(labels[:6])} … {labels[-1]}"
        scheme = "" if self.scheme is LabelScheme.PLAIN else f" in {self.scheme}"
        calls = ""
        if config.system_entry.is_diffusion:
            number, base = config.inference.calls_and_base()
            calls = f", {number} calls" if number is not None else f", calls by base {base:g}"
        num_parameters = sum(parameter.numel() for parameter in self._labeller.parameters())
        return (
            f"Tagger({config.system} for {config.task}: {len(labels)} labels{scheme} ({shown});"
            f" {config.encoder.title}, {num_parameters:,} parameters{calls}, decoder {self.decoder}, on {self.device})"
        )

    def push_to_hub(
        self, name: str, *, private: bool = False, token: str | None = None, message: str = "Upload a tagger"
    ) -> str:
        """Upload the files that `save` writes to the repository ``name`` on the Hugging Face hub, creating it if needed.

        Returns the address of the commit. `from_pretrained` with the same name loads the model again.
        """
        with tempfile.TemporaryDirectory(prefix="diffusion-mf-") as temporary:
            folder = Path(temporary) / "model"
            self.save(folder)
            return upload(folder, name, private=private, token=token, message=message)

    @property
    def num_long_sentences(self) -> int:
        """How many sentences so far were longer than the pretrained encoder accepts."""
        encoder = self._pretrained_encoder()
        return 0 if encoder is None else encoder.preparer.num_long

    @property
    def on_long(self) -> OnLong | None:
        """How such sentences are handled; None if the encoder accepts any length."""
        encoder = self._pretrained_encoder()
        return None if encoder is None else encoder.preparer.settings.on_long

    def set_on_long(self, on_long: OnLong) -> None:
        """Set how sentences longer than a pretrained encoder accepts are handled; other encoders accept any length.

        ``window`` encodes them in overlapping windows; ``error`` raises an `InputError`; ``truncate`` encodes only the units that
        training with this setting would see, and labels the rest without encoding.
        """
        if not isinstance(on_long, str) or on_long not in ("window", "error", "truncate"):
            raise InputError(f"on_long cannot be {quoted(on_long)}", remedy="choose window, error or truncate")
        encoder = self._pretrained_encoder()
        if encoder is not None:
            with self._turn:
                encoder.set_on_long(on_long)

    def set_posterior(self, reading: Reading) -> None:
        """Choose the form of the reverse posterior in categorical diffusion (`diffusion.Reading`); the model is not changed."""
        if not isinstance(reading, str) or reading not in get_args(Reading):
            raise InputError(f"posterior cannot be {quoted(reading)}", remedy=f"choose {', '.join(get_args(Reading))}")
        config = self._model.config
        if config.system_entry.process != "categorical":
            raise InputError(
                f"the system {config.system} has no reverse posterior of labels", remedy="leave out the posterior"
            )
        inference = config.inference.model_copy(update={"posterior": reading})
        with self._turn:
            self._predictor = Predictor(self._labeller, config.model_copy(update={"inference": inference}), self.device)

    def keep_words(self) -> None:
        """On a CPU, compute in advance the representations of all words of the training data."""
        if self._words is not None:
            with self._turn:
                self._words.keep_vocabulary()

    def forget_words(self) -> None:
        """Clear the cache of word representations computed since `keep_words`, or since loading; labels do not depend on it."""
        if self._words is not None:
            with self._turn:
                self._words.forget()

    def _pretrained_encoder(self) -> PretrainedEncoder | None:
        from diffusion_mf.networks.encoders import PretrainedEncoder

        encoder = getattr(self._labeller, "encoder", None)
        return encoder if isinstance(encoder, PretrainedEncoder) else None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of results, in the order of a trajectory's columns; `labels_in` gives those of another scheme."""
        return self._output.names

    def labels_in(self, scheme: LabelScheme | str) -> tuple[str, ...]:
        """The labels of results in ``scheme``, in the order of a trajectory's columns."""
        return self._checked_output(scheme).names

    @property
    def task(self) -> Task:
        """The labelling task of the model."""
        return self._model.config.task

    @property
    def scheme(self) -> LabelScheme:
        """The label scheme of results, that of the training data; the model itself works in ``model.scheme`` (BMES)."""
        return self._output.target

    @property
    def decoder(self) -> str:
        """The default decoder: the best on development data among those that always give a legal sequence."""
        return self._model.tagging_decoder

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The scores measured when the model was trained."""
        return self._model.metrics

    @property
    def model(self) -> StoredModel:
        """The model with its vocabulary, configuration and metrics."""
        return self._model

    def tag(
        self,
        sentences: Iterable[SentenceLike],
        *,
        batch_tokens: int | None = None,
        calls: int | None = None,
        decoder: str | None = None,
        clamp: Iterable[Clamp | PlacedClamp | None] | None = None,
        scheme: LabelScheme | str | None = None,
        trajectory: bool = False,
        marginals: bool = False,
        k_best: int | None = None,
        documents: Iterable[Hashable] | None = None,
    ) -> list[TaggedSentence]:
        """Label ``sentences``, each a sequence of units (for characters, a string is enough).

        ``batch_tokens`` bounds the units computed at once, padding counted. ``calls`` is the number of denoising steps of a
        diffusion system. ``clamp`` gives, for every sentence, None or the labels known beforehand (`requests.Clamp`); they are
        always honoured. ``scheme`` is that of the labels, if not the training data's; ``"bmes"`` is the model's own. ``trajectory`` keeps the beliefs
        after every call, of which there are ten if their number was chosen on dev, ``marginals`` the probabilities of all labels,
        ``k_best`` that many of the best sequences (`TaggedSentence.alternatives`). ``documents`` gives, for every sentence, None or the
        name of its document: a model with recall labels sentences of one document together, if they follow each other.
        """
        return list(
            self.stream(
                sentences,
                batch_tokens=batch_tokens,
                calls=calls,
                decoder=decoder,
                clamp=clamp,
                scheme=scheme,
                trajectory=trajectory,
                marginals=marginals,
                k_best=k_best,
                documents=documents,
            )
        )

    def stream(
        self,
        sentences: Iterable[SentenceLike],
        *,
        batch_tokens: int | None = None,
        calls: int | None = None,
        decoder: str | None = None,
        clamp: Iterable[Clamp | PlacedClamp | None] | None = None,
        scheme: LabelScheme | str | None = None,
        trajectory: bool = False,
        marginals: bool = False,
        k_best: int | None = None,
        documents: Iterable[Hashable] | None = None,
    ) -> Iterator[TaggedSentence]:
        """`tag`, one result after the other in the order given; looks ahead no further than a window of sentences."""
        output = self._checked_output(scheme)
        options = self._checked_options(batch_tokens, calls, decoder, trajectory, marginals, k_best, output)
        # The arguments are checked at once; the sentences only as they are read.
        return self._stream(self._read_requests(sentences, clamp, documents, output), options)

    def read_requests(
        self,
        sentences: Iterable[SentenceLike],
        *,
        clamp: Iterable[Clamp | PlacedClamp | None] | None = None,
        scheme: LabelScheme | str | None = None,
        documents: Iterable[Hashable] | None = None,
    ) -> list[Request]:
        """Check the input of `tag` without tagging it; `tag_requests` does that, together with other requests if need be."""
        output = self._checked_output(scheme)
        return list(self._read_requests(sentences, clamp, documents, output))

    def tag_requests(
        self,
        requests: Iterable[Request],
        *,
        batch_tokens: int | None = None,
        calls: int | None = None,
        decoder: str | None = None,
        scheme: LabelScheme | str | None = None,
        trajectory: bool = False,
        marginals: bool = False,
        k_best: int | None = None,
    ) -> list[TaggedSentence]:
        """Label the requests of `read_requests` as `tag` does; documents are told apart by their numbers."""
        output = self._checked_output(scheme)
        options = self._checked_options(batch_tokens, calls, decoder, trajectory, marginals, k_best, output)
        return list(self._stream(iter(requests), options))

    def _checked_options(
        self,
        batch_tokens: int | None,
        calls: int | None,
        decoder: str | None,
        trajectory: bool,
        marginals: bool,
        k_best: int | None,
        output: OutputLabels,
    ) -> _Options:
        budget = self._model.config.inference.budget if batch_tokens is None else whole_number(batch_tokens)
        if budget is None or budget < 1:
            raise InputError(
                f"a batch must hold a unit, found {quoted(batch_tokens)}", remedy="give a positive number of tokens"
            )
        if self.device.type == "cuda" and os.getpid() != self._process:
            raise InputError(
                "a tagger on a GPU cannot be used in a forked process",
                remedy="start processes with the spawn method, or load a tagger in each process",
            )
        for name, value in (("trajectory", trajectory), ("marginals", marginals)):
            if not isinstance(value, bool | np.bool_):
                raise InputError(f"{name} cannot be {quoted(value)}", remedy="give True or False")
        config = self._model.config
        usual = config.inference.num_calls
        if trajectory and calls is None and config.system_entry.is_diffusion and isinstance(usual, int):
            # Few calls are enough where further ones change nothing; whoever looks at a trajectory wants to see that.
            calls = max(usual, min(TRAJECTORY_CALLS, config.diffusion.num_steps))
        num_best = None if k_best is None else whole_number(k_best)
        if k_best is not None and (num_best is None or not 1 <= num_best <= MOST_SEQUENCES):
            raise InputError(f"k_best cannot be {quoted(k_best)}", remedy=f"ask for 1 to {MOST_SEQUENCES:,} sequences")
        return _Options(
            self._checked_calls(calls),
            self._checked_decoder(decoder),
            bool(trajectory),
            bool(marginals),
            budget,
            output,
            num_best,
        )

    def _stream(self, requests: Iterator[Request], options: _Options) -> Iterator[TaggedSentence]:
        document = None
        if self._recall:
            requests, document = in_documents(requests), _DOCUMENT
        for window in windows(requests, _NUM_UNITS, budget=options.budget, document=document):
            # The lock is free while sentences are read and results are used, since either may call the tagger.
            with self._turn:
                if self._recall:
                    self.num_in_documents += sum(request.document > 0 for request in window)
                with self._threads(sum(map(_NUM_UNITS, window)), options.budget):
                    results = self._tag_window(window, options)
            yield from results

    def _threads(self, num_units: int, budget: int) -> contextlib.AbstractContextManager[None]:
        """A context with one thread for a batch with little work, and with PyTorch's number of threads for others."""
        return one_thread() if min(num_units, budget) <= self._one_thread_units else contextlib.nullcontext()

    @torch.inference_mode()
    def _tag_window(self, window: Sequence[Request], options: _Options) -> list[TaggedSentence]:
        output = options.output

        def finish(prediction: Prediction, *, members: Sequence[int], allowed: Tensor | None) -> list[Tensor]:
            decoder_input = prediction.decoder_input
            pairs = None if allowed is None else _stack_pairs([window[index].allowed for index in members], allowed)
            if pairs is not None:
                decoder_input = dataclasses.replace(decoder_input, allowed_pairs=pairs)
            label_ids = DECODERS[options.decoder](decoder_input)
            probabilities = self._probabilities(prediction.marginals, allowed)
            # The confidence of spans comes from the model's own labels, which mark where spans end.
            found = [label_ids, self._own.scores(probabilities, label_ids)]
            if self._has_chain:
                found += self._chain_scores(decoder_input, allowed, label_ids)
            if not output.is_one_to_one:
                found.append(output.scores(probabilities, label_ids, pairs))
            if options.marginals:
                found.append(output.probabilities(probabilities, pairs))
            if options.k_best is not None:
                found += k_best_of(decoder_input, options.k_best, decoder=options.decoder)
            if options.trajectory:
                found += _steps(prediction, functools.partial(output.probabilities, pairs=pairs))
            return found

        prepared = [request.prepared for request in window]
        batches = predict_sentences(
            self._predictor,
            prepared,
            self._model.vocabulary,
            finish,
            budget=options.budget if self._most_units is None else min(options.budget, self._most_units),
            num_calls=options.calls,
            allowed=[None if request.allowed is None else request.allowed.labels for request in window],
            keep_trajectory=options.trajectory,
            rows=None if self._words is None else self._words.look_up(prepared, recall=self._recall),
        )
        found: dict[int, TaggedSentence] = {}
        try:
            for members, (label_ids, own_scores, *others) in batches:
                units = [window[index].units for index in members]
                chain = (others.pop(0).tolist(), others.pop(0).tolist()) if self._has_chain else None
                scores = None if output.is_one_to_one else others.pop(0).tolist()
                marginals = others.pop(0).numpy().copy() if options.marginals else None
                best = None if options.k_best is None else (others.pop(0).tolist(), others.pop(0).tolist())
                results = tagged_sentences(
                    units,
                    label_ids.tolist(),
                    own_scores.tolist(),
                    output,
                    scores=scores,
                    marginals=marginals,
                    best=best,
                    calibration=self._span_calibration,
                    chain=chain,
                    steps=_as_arrays(others),
                    separator=self._separator,
                )
                found.update(zip(members, results, strict=True))
        except DoesNotFitError as error:
            raise InputError(error.problem, remedy="split it") from None
        # What has no units was in no batch.
        return [found.get(index) or _without_units(options) for index in range(len(window))]

    def _chain_scores(self, decoder_input: DecoderInput, allowed: Tensor | None, label_ids: Tensor) -> list[Tensor]:
        """log P(yᵢ) and log P(yᵢ₊₁ | yᵢ) of the chosen labels under the chain with its scores divided by the temperature."""
        potentials = decoder_input.potentials
        if potentials is None:
            raise ValueError("a chain has unary and transition scores")
        temperature = self._model.temperature
        unary, *others = potentials
        tempered = Potentials(
            unary.float() / temperature,
            *(None if scores is None else scores.float() / temperature for scores in others),
        )
        settings = InferenceSettings(backend=decoder_input.backend, check=False)
        chain = LinearChain.from_potentials(tempered, decoder_input.lengths, allowed=allowed, settings=settings)
        of_units = chain.log_marginals().gather(-1, label_ids[..., None])[..., 0]
        return [of_units, chain.log_conditionals(label_ids)]

    def _checked_calls(self, calls: int | None) -> int | None:
        if calls is None:
            return None
        config, number = self._model.config, whole_number(calls)
        if not config.system_entry.is_diffusion:
            if number != 1:
                raise InputError(
                    f"the system {config.system} makes one call, not {quoted(calls)}",
                    remedy="leave out the number of calls",
                )
            return None
        if number is None or not 1 <= number <= config.diffusion.num_steps:
            raise InputError(
                f"{quoted(calls)} calls are not possible", remedy=f"ask for 1 to {config.diffusion.num_steps} of them"
            )
        return number

    def _checked_decoder(self, name: str | None) -> str:
        if name is not None and (not isinstance(name, str) or name not in DECODERS):
            raise InputError(f"no decoder is called {quoted(name)}", remedy=f"choose one of {', '.join(DECODERS)}")
        return name or self.decoder

    def _checked_output(self, scheme: LabelScheme | str | None) -> OutputLabels:
        if scheme is None:
            return self._output
        if not isinstance(scheme, str) or scheme not in list(LabelScheme):
            raise InputError(f"no scheme is called {quoted(scheme)}", remedy=f"choose one of {', '.join(LabelScheme)}")
        scheme = LabelScheme(scheme)
        if (scheme is LabelScheme.PLAIN) != (self._model.scheme is LabelScheme.PLAIN):
            raise InputError(
                f"labels of the task {self.task} cannot be written in the scheme {scheme}",
                remedy="leave out the scheme",
            )
        return OutputLabels(self._model.vocabulary.labels, self._model.scheme, scheme)

    def _probabilities(
        self, marginals: Float[Tensor, "B N K"], allowed: Bool[Tensor, "B N K"] | None
    ) -> Float[Tensor, "B N K"]:
        """Calibrated marginals, restricted to the labels that clamps allow."""
        marginals = marginals.float().clamp(min=torch.finfo(torch.float32).tiny)
        if allowed is not None:
            marginals = torch.where(allowed, marginals, 0)
        return calibrated(marginals, self._model.temperature)

    def tag_text(self, text: str, *, language: str | None = None, **options: Any) -> list[TaggedSentence]:
        """Split raw text into sentences and tokens, and label them as one document; `TaggedSentence.offsets` are in ``text``.

        ``language`` determines how words are split (`data.raw_text`), by default the model's language; ``options`` are those of
        `tag`.
        """
        from diffusion_mf.tagger.files import tag_text

        return tag_text(self, text, language=language, **options)

    def tag_frame(
        self,
        frame: DataFrame,
        column: Hashable,
        *,
        batch_tokens: int | None = None,
        calls: int | None = None,
        decoder: str | None = None,
        scheme: LabelScheme | str | None = None,
        language: str | None = None,
    ) -> DataFrame:
        """Label the texts or the lists of words in a column of a pandas frame; returns the frame with columns more.

        These are ``units``, ``labels``, ``scores`` and, of labels that mark spans, ``spans`` (as in `TaggedSentence.to_dict`), with a
        list in each cell; ``explode`` gives each unit a row. Texts are split as by `tag_text`, and the sentences of a cell are joined.
        Missing values have empty lists. The frame must not have columns of these names. The options are those of `tag` and `tag_text`.
        """
        from diffusion_mf.tagger.frames import tag_frame

        return tag_frame(
            self,
            frame,
            column,
            language=language,
            batch_tokens=batch_tokens,
            calls=calls,
            decoder=decoder,
            scheme=scheme,
        )


def _name_of_model(given: object) -> str:
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"the model is {quoted(given)}", remedy="give the path of its folder")
    return os.fspath(given)


def _without_units(options: _Options) -> TaggedSentence:
    return TaggedSentence(
        (),
        [],
        [],
        [],
        () if options.trajectory else None,
        marginals=np.zeros((0, len(options.output.names)), dtype=np.float32) if options.marginals else None,
        alternatives=None if options.k_best is None else (),
    )


def _stack_pairs(clamps: Sequence[Allowed | None], allowed: Bool[Tensor, "B N K"]) -> Bool[Tensor, "B M K K"] | None:
    """The pairs of labels that clamps allow neighbours in a batch; None if no clamp restricts pairs."""
    if all(clamp is None or clamp.pairs is None for clamp in clamps):
        return None
    B, N, K = allowed.shape
    stacked = torch.ones(B, N - 1, K, K, dtype=torch.bool)
    for row, clamp in zip(stacked, clamps, strict=True):
        if clamp is not None and clamp.pairs is not None:
            row[: len(clamp.pairs)] = clamp.pairs
    return stacked.to(allowed.device)


def _steps(prediction: Prediction, of_names: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """The step reached and the beliefs after every call; the only call of a direct system gives its marginals."""
    steps = [(0, prediction.marginals)] if prediction.trajectory is None else prediction.trajectory
    return [torch.tensor([t for t, _ in steps]), *(of_names(beliefs.float()) for _, beliefs in steps)]


def _as_arrays(steps: Sequence[Tensor]) -> Steps | None:
    """The result of `_steps` copied to memory that may be kept; None if no trajectory was requested."""
    if not steps:
        return None
    return [(t, beliefs.numpy().copy()) for t, beliefs in zip(steps[0].tolist(), steps[1:], strict=True)]
