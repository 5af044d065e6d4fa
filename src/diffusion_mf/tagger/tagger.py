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

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import StrPath
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.decoding import DECODERS, OutputLabels, k_best_of
from diffusion_mf.diffusion import Reading
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.calibration import calibrated
from diffusion_mf.model.hub import download, upload
from diffusion_mf.model.storage import StoredModel, load_model, save_model
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
from diffusion_mf.tagger.requests import Allowed, Clamp, PlacedClamp, Request, RequestReader, Units, in_documents
from diffusion_mf.tagger.results import Steps, TaggedSentence, tagged_sentences

if TYPE_CHECKING:
    from diffusion_mf.model import Prediction
    from diffusion_mf.networks.encoders import PretrainedEncoder
    from diffusion_mf.networks.pretrained.subwords import OnLong


Item = TypeVar("Item")

WINDOW_BATCHES = 8
"""how many batches' worth of units are looked ahead, so that sentences of similar length meet"""
MAX_WINDOW_ITEMS = 4096
"""and how many sentences at most, for memory must be bounded however short they are"""


def windows(
    items: Iterable[Item],
    num_units: Callable[[Item], int],
    *,
    budget: int,
    document: Callable[[Item], int] | None = None,
) -> Iterator[list[Item]]:
    """Cut ``items`` into stretches of about `WINDOW_BATCHES` × ``budget`` units, reading no further than that.

    Given what ``document`` an item belongs to (0: none), none is cut: its end is known only from the item after it.
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
        # With a budget of 1 no sentence shares a batch, so that there is nothing to wait for.
        is_full = budget == 1 or total >= WINDOW_BATCHES * budget or len(window) >= MAX_WINDOW_ITEMS
        if is_full and (document is None or not document(item)):
            yield window
            window, total, is_full = [], 0, False
    if window:
        yield window


_NUM_UNITS: Callable[[Request], int] = operator.attrgetter("num_units")
_DOCUMENT: Callable[[Request], int] = operator.attrgetter("document")


class _Options(NamedTuple):
    """How a call wants its sentences tagged."""

    calls: int | None
    decoder: str
    trajectory: bool
    budget: int
    output: OutputLabels
    k_best: int | None


class Tagger:
    """Labels sentences with a trained model.

    Results do not depend on how sentences are batched or ordered, save for ties: padding carries no information. Threads may
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
        # On a GPU it costs less to compute them again than to look them up on the host.
        has_table = self.device.type == "cpu" and not self._predictor.is_packed
        self._words = known_words(model) if has_table else None
        self._most_units = CPU_BATCH_UNITS if self.device.type == "cpu" and has_transformer(model) else None
        self._own = OutputLabels(model.vocabulary.labels, model.scheme, model.scheme)
        self._output = OutputLabels(model.vocabulary.labels, model.scheme, model.output_scheme)
        self._read_requests = RequestReader(model.config.task, model.config.data, model.labeller.legality, self._output)
        self._one_thread_units = (
            ONE_THREAD_WORK // max(1, num_multiplications(model)) if self.device.type == "cpu" else 0
        )
        # What is known of words, and what a GPU has recorded, serve one window of sentences at a time.
        self._turn = new_turn()
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock, which belongs to the threads of one process."""
        return {name: value for name, value in self.__dict__.items() if name != "_turn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy has a lock of its own."""
        self.__dict__.update(state)
        self._turn = new_turn()
        self._process = os.getpid()

    @classmethod
    def load(cls, folder: StrPath, *, device: str | torch.device = "auto", plugins: Sequence[str] = ()) -> Tagger:
        """Read a model folder that `save` or ``dmf train`` wrote; ``auto`` is a GPU where there is one.

        ``plugins`` are modules, or paths of their files, to import for it: a model says which it needs, but only you may ask.
        """
        import_plugins(plugins)
        return cls(load_model(folder), device=device)

    @classmethod
    def from_pretrained(
        cls,
        name: StrPath,
        *,
        revision: str | None = None,
        device: str | torch.device = "auto",
        plugins: Sequence[str] = (),
    ) -> Tagger:
        """The model of a folder, or of a repository on the Hugging Face hub where there is no such folder."""
        folder = name if os.path.exists(name) else download(os.fspath(name), revision=revision)
        return cls.load(folder, device=device, plugins=plugins)

    def save(self, folder: StrPath) -> None:
        """Write a model folder that `load` reads."""
        save_model(folder, *self._model)

    def push_to_hub(
        self, name: str, *, private: bool = False, token: str | None = None, message: str = "Upload a tagger"
    ) -> str:
        """Put the files that `save` writes into the repository ``name`` of the Hugging Face hub, made if need be.

        Returns the address of the commit. `from_pretrained` with the same name loads the model again.
        """
        with tempfile.TemporaryDirectory(prefix="diffusion-mf-") as temporary:
            folder = Path(temporary) / "model"
            self.save(folder)
            return upload(folder, name, private=private, token=token, message=message)

    @property
    def num_long_sentences(self) -> int:
        """How many sentences so far were longer than a pretrained encoder takes at once."""
        encoder = self._pretrained_encoder()
        return 0 if encoder is None else encoder.preparer.num_long

    @property
    def on_long(self) -> OnLong | None:
        """What becomes of such sentences; None where an encoder takes any."""
        encoder = self._pretrained_encoder()
        return None if encoder is None else encoder.preparer.settings.on_long

    def set_on_long(self, on_long: OnLong) -> None:
        """Say what becomes of sentences longer than a pretrained encoder takes at once; other encoders take any.

        ``window``: they are encoded in overlapping windows; ``error``: an `InputError`; ``truncate``: what comes after the
        units that training with this setting would see is labelled without being encoded.
        """
        if on_long not in ("window", "error", "truncate"):
            raise InputError(f"on_long cannot be {on_long!r}", remedy="choose window, error or truncate")
        encoder = self._pretrained_encoder()
        if encoder is not None:
            with self._turn:
                encoder.set_on_long(on_long)

    def set_posterior(self, reading: Reading) -> None:
        """Say how beliefs follow from beliefs in categorical diffusion (`diffusion.Reading`); the model stays as it is."""
        if reading not in get_args(Reading):
            raise InputError(f"posterior cannot be {reading!r}", remedy=f"choose {', '.join(get_args(Reading))}")
        config = self._model.config
        if config.system_entry.process != "categorical":
            raise InputError(
                f"the system {config.system} has no reverse posterior of labels", remedy="leave out the posterior"
            )
        inference = config.inference.model_copy(update={"posterior": reading})
        with self._turn:
            self._predictor = Predictor(self._labeller, config.model_copy(update={"inference": inference}), self.device)

    def keep_words(self) -> None:
        """On a CPU, compute now what only depends on single words, for all words of the training data."""
        if self._words is not None:
            with self._turn:
                self._words.keep_vocabulary()

    def forget_words(self) -> None:
        """Forget what was computed for words since `keep_words`, or since loading; labels do not depend on it."""
        if self._words is not None:
            with self._turn:
                self._words.forget()

    def _pretrained_encoder(self) -> PretrainedEncoder | None:
        from diffusion_mf.networks.encoders import PretrainedEncoder

        encoder = getattr(self._labeller, "encoder", None)
        return encoder if isinstance(encoder, PretrainedEncoder) else None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of results, in the order of a trajectory's columns; of another scheme, `labels_in` has them."""
        return self._output.names

    def labels_in(self, scheme: LabelScheme | str) -> tuple[str, ...]:
        """The labels of results in ``scheme``, in the order of a trajectory's columns."""
        return self._checked_output(scheme).names

    @property
    def task(self) -> Task:
        """What the labels are about."""
        return self._model.config.task

    @property
    def scheme(self) -> LabelScheme:
        """How the labels of results mark spans: as in the training data. The model itself works in ``model.scheme`` (BMES)."""
        return self._output.target

    @property
    def decoder(self) -> str:
        """The decoder used unless another is asked for: of those whose output is always legal, the best on development data."""
        return self._model.tagging_decoder

    @property
    def metrics(self) -> Mapping[str, Any]:
        """What was measured when the model was made."""
        return self._model.metrics

    @property
    def model(self) -> StoredModel:
        """Everything the model is made of."""
        return self._model

    def tag(
        self,
        sentences: Iterable[Units],
        *,
        batch_tokens: int | None = None,
        calls: int | None = None,
        decoder: str | None = None,
        clamp: Iterable[Clamp | PlacedClamp | None] | None = None,
        scheme: LabelScheme | str | None = None,
        trajectory: bool = False,
        k_best: int | None = None,
        documents: Iterable[Hashable] | None = None,
    ) -> list[TaggedSentence]:
        """Label ``sentences``, each a sequence of units (of characters a string will do).

        ``batch_tokens`` bounds the units computed at once, padding counted. ``calls`` is the number of denoising steps of a
        diffusion system. ``clamp`` gives, for every sentence, None or the labels known beforehand (`requests.Clamp`); they are
        always honoured. ``scheme`` is that of the labels, if not the training data's; ``"bmes"`` is the model's own. ``trajectory`` keeps the beliefs after every call.
        ``k_best`` asks for so many of the best sequences, too (`TaggedSentence.alternatives`). ``documents`` gives, for every sentence, None or the
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
                k_best=k_best,
                documents=documents,
            )
        )

    def stream(
        self,
        sentences: Iterable[Units],
        *,
        batch_tokens: int | None = None,
        calls: int | None = None,
        decoder: str | None = None,
        clamp: Iterable[Clamp | PlacedClamp | None] | None = None,
        scheme: LabelScheme | str | None = None,
        trajectory: bool = False,
        k_best: int | None = None,
        documents: Iterable[Hashable] | None = None,
    ) -> Iterator[TaggedSentence]:
        """`tag`, one result after the other in the order given; looks ahead no further than a window of sentences."""
        output = self._output if scheme is None else self._checked_output(scheme)
        options = self._checked_options(batch_tokens, calls, decoder, trajectory, k_best, output)
        # The arguments are checked at once; the sentences only as they are read.
        return self._stream(self._read_requests(sentences, clamp, documents, output), options)

    def read_requests(
        self,
        sentences: Iterable[Units],
        *,
        clamp: Iterable[Clamp | PlacedClamp | None] | None = None,
        scheme: LabelScheme | str | None = None,
        documents: Iterable[Hashable] | None = None,
    ) -> list[Request]:
        """What `tag` would be asked, checked but not tagged: `tag_requests` does that, with requests of others if need be."""
        output = self._output if scheme is None else self._checked_output(scheme)
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
        k_best: int | None = None,
    ) -> list[TaggedSentence]:
        """Label what `read_requests` gave, as `tag` does; documents are told apart by their numbers."""
        output = self._output if scheme is None else self._checked_output(scheme)
        options = self._checked_options(batch_tokens, calls, decoder, trajectory, k_best, output)
        return list(self._stream(iter(requests), options))

    def _checked_options(
        self,
        batch_tokens: int | None,
        calls: int | None,
        decoder: str | None,
        trajectory: bool,
        k_best: int | None,
        output: OutputLabels,
    ) -> _Options:
        budget = self._model.config.inference.budget if batch_tokens is None else batch_tokens
        if budget < 1:
            raise InputError(f"a batch must hold a unit, found {budget}", remedy="give a positive number of tokens")
        if self.device.type == "cuda" and os.getpid() != self._process:
            raise InputError(
                "a tagger on a GPU cannot be used in a forked process",
                remedy="start processes by spawn, or load a tagger in each of them",
            )
        if k_best is not None and k_best < 1:
            raise InputError(f"the {k_best} best sequences are none", remedy="ask for 1 or more")
        return _Options(self._checked_calls(calls), self._checked_decoder(decoder), trajectory, budget, output, k_best)

    def _stream(self, requests: Iterator[Request], options: _Options) -> Iterator[TaggedSentence]:
        document = None
        if self._recall:
            requests, document = in_documents(requests), _DOCUMENT
        for window in windows(requests, _NUM_UNITS, budget=options.budget, document=document):
            # Neither while sentences are read nor while results are used: either may call the tagger.
            with self._turn:
                if self._recall:
                    self.num_in_documents += sum(request.document > 0 for request in window)
                with self._threads(sum(map(_NUM_UNITS, window)), options.budget):
                    results = self._tag_window(window, options)
            yield from results

    def _threads(self, num_units: int, budget: int) -> contextlib.AbstractContextManager[None]:
        """One thread for batches with little work; PyTorch's number for others."""
        return one_thread() if min(num_units, budget) <= self._one_thread_units else contextlib.nullcontext()

    @torch.inference_mode()
    def _tag_window(self, window: Sequence[Request], options: _Options) -> list[TaggedSentence]:
        output = options.output

        def finish(prediction: Prediction, *, members: Sequence[int], allowed: Tensor | None) -> list[Tensor]:
            evidence = prediction.evidence
            pairs = None if allowed is None else _stack_pairs([window[index].allowed for index in members], allowed)
            if pairs is not None:
                evidence = dataclasses.replace(evidence, allowed_pairs=pairs)
            label_ids = DECODERS[options.decoder](evidence)
            probabilities = self._probabilities(prediction.marginals, allowed)
            # Spans are as sure as the model's own labels, which tell where they end.
            found = [label_ids, self._own.scores(probabilities, label_ids)]
            if not output.is_one_to_one:
                found.append(output.scores(probabilities, label_ids, pairs))
            if options.k_best is not None:
                found += k_best_of(evidence, options.k_best, decoder=options.decoder)
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
                scores = None if output.is_one_to_one else others.pop(0).tolist()
                best = None if options.k_best is None else (others.pop(0).tolist(), others.pop(0).tolist())
                results = tagged_sentences(
                    units,
                    label_ids.tolist(),
                    own_scores.tolist(),
                    output,
                    scores=scores,
                    best=best,
                    steps=_as_arrays(others),
                )
                found.update(zip(members, results, strict=True))
        except DoesNotFitError as error:
            raise InputError(error.problem, remedy="split it") from None
        # What has no units was in no batch.
        nothing = TaggedSentence(
            (), [], [], [], () if options.trajectory else None, alternatives=None if options.k_best is None else ()
        )
        return [found.get(index) or nothing for index in range(len(window))]

    def _checked_calls(self, calls: int | None) -> int | None:
        if calls is None:
            return None
        config = self._model.config
        if not config.system_entry.is_diffusion:
            if calls != 1:
                raise InputError(
                    f"the system {config.system} makes one call, not {calls}", remedy="leave out the number of calls"
                )
            return None
        if not 1 <= calls <= config.diffusion.num_steps:
            raise InputError(
                f"{calls} calls are not possible", remedy=f"ask for 1 to {config.diffusion.num_steps} of them"
            )
        return calls

    def _checked_decoder(self, name: str | None) -> str:
        if name is not None and name not in DECODERS:
            raise InputError(f"no decoder is called {name!r}", remedy=f"choose one of {', '.join(DECODERS)}")
        return name or self.decoder

    def _checked_output(self, scheme: LabelScheme | str) -> OutputLabels:
        if scheme not in list(LabelScheme):
            raise InputError(f"no scheme is called {scheme!r}", remedy=f"choose one of {', '.join(LabelScheme)}")
        scheme = LabelScheme(scheme)
        if scheme is not self._model.scheme and (self.task is not Task.NER or scheme is LabelScheme.PLAIN):
            raise InputError(
                f"labels of the task {self.task} cannot be written in the scheme {scheme}",
                remedy="leave out the scheme",
            )
        return OutputLabels(self._model.vocabulary.labels, self._model.scheme, scheme)

    def _probabilities(
        self, marginals: Float[Tensor, "B N K"], allowed: Bool[Tensor, "B N K"] | None
    ) -> Float[Tensor, "B N K"]:
        """Calibrated marginals, among the labels that clamps allow."""
        marginals = marginals.float().clamp(min=torch.finfo(torch.float32).tiny)
        if allowed is not None:
            marginals = torch.where(allowed, marginals, 0)
        return calibrated(marginals, self._model.temperature)

    def tag_text(self, text: str, *, language: str | None = None, **options: Any) -> list[TaggedSentence]:
        """Split raw text into sentences and tokens, and label them as one document; `TaggedSentence.offsets` are in ``text``.

        ``language`` decides how words are split (`data.raw_text`), by default the one the model was trained with; ``options`` are
        those of `tag`.
        """
        from diffusion_mf.tagger.files import tag_text

        return tag_text(self, text, language=language, **options)


def _stack_pairs(clamps: Sequence[Allowed | None], allowed: Bool[Tensor, "B N K"]) -> Bool[Tensor, "B M K K"] | None:
    """The pairs of labels that the clamps of a batch leave to neighbours, None if no sentence's says anything of pairs."""
    if all(clamp is None or clamp.pairs is None for clamp in clamps):
        return None
    B, N, K = allowed.shape
    stacked = torch.ones(B, N - 1, K, K, dtype=torch.bool)
    for row, clamp in zip(stacked, clamps, strict=True):
        if clamp is not None and clamp.pairs is not None:
            row[: len(clamp.pairs)] = clamp.pairs
    return stacked.to(allowed.device)


def _steps(prediction: Prediction, of_names: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """The steps reached, and the beliefs after every call; a direct system's only call ends with its marginals."""
    steps = [(0, prediction.marginals)] if prediction.trajectory is None else prediction.trajectory
    return [torch.tensor([t for t, _ in steps]), *(of_names(beliefs.float()) for _, beliefs in steps)]


def _as_arrays(steps: Sequence[Tensor]) -> Steps | None:
    """What `_steps` gave, in memory that may be kept; None where trajectories were not asked for."""
    if not steps:
        return None
    return [(t, beliefs.numpy().copy()) for t, beliefs in zip(steps[0].tolist(), steps[1:], strict=True)]
