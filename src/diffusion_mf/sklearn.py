"""`SequenceLabeller`: training and tagging as a scikit-learn estimator (``pip install 'diffusion-mf[sklearn]'``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from diffusion_mf.api import train
from diffusion_mf.data.label_schemes import LabelError, LabelScheme, check_sequence, encode_spans, repair_spans
from diffusion_mf.errors import quoted
from diffusion_mf.evaluation import PRIMARY_METRICS, score_sentences
from diffusion_mf.tagger import Tagger

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils import check_consistent_length
    from sklearn.utils.validation import check_is_fitted
except ModuleNotFoundError:
    raise ImportError("diffusion_mf.sklearn needs scikit-learn: pip install 'diffusion-mf[sklearn]'") from None

Sentences = Sequence[Sequence[str]]


class SequenceLabeller(BaseEstimator):
    """Labels sequences: ``fit`` trains a model of this package, ``predict`` tags with it.

    X is a list of sentences, each a list of words; y the list of their labels. Task, scheme and settings follow from the data, as
    for `diffusion_mf.train`, unless given: ``settings`` are any others by their dotted names, such as
    ``{"encoder.width": 64}``. ``decoder`` and ``calls`` are those of `Tagger.tag`. ``random_state`` is the seed of weights, noise
    and of the sentences held out to choose the best epoch.

    After ``fit``, ``tagger_`` is the `Tagger` and ``classes_`` are its labels. A pickle holds the model as the bytes of its files
    (safetensors and JSON).
    """

    def __init__(
        self,
        system: str = "diffusion-mf",
        *,
        task: str | None = None,
        encoder: str | None = None,
        minutes: float | None = None,
        epochs: int | None = None,
        learning_rate: float | None = None,
        settings: Mapping[str, Any] | None = None,
        decoder: str | None = None,
        calls: int | None = None,
        device: str = "auto",
        random_state: int | None = 1,
        verbose: bool = False,
    ) -> None:
        self.system = system
        self.task = task
        self.encoder = encoder
        self.minutes = minutes
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.settings = settings
        self.decoder = decoder
        self.calls = calls
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Sentences, y: Sentences, *, dev: tuple[Sentences, Sentences] | None = None) -> SequenceLabeller:
        """Train on sentences and their labels; ``dev`` are others, (X, y), to choose the best epoch on."""
        if dev is not None and not (isinstance(dev, tuple | list) and len(dev) == 2):
            raise ValueError("dev must be a pair of sentences and their labels, (X, y)")
        given = {"training.epochs": self.epochs, "training.learning_rate": self.learning_rate}
        settings = {name: value for name, value in given.items() if value is not None} | dict(self.settings or {})
        self.tagger_ = train(
            train=_pairs(X, y),
            dev=None if dev is None else _pairs(*dev),
            system=self.system,
            task=self.task,
            encoder=self.encoder,
            minutes=self.minutes,
            seed=self.random_state,
            settings=settings,
            device=self.device,
            on_progress=None if self.verbose else _ignore,
        )
        self.classes_ = np.array(self.tagger_.labels, dtype=object)
        return self

    def predict(self, X: Sentences) -> list[list[str]]:
        """The labels of every sentence, in the scheme of the training data."""
        check_is_fitted(self)
        return [result.labels for result in self.tagger_.tag(_sentences(X), decoder=self.decoder, calls=self.calls)]

    def predict_marginals(self, X: Sentences) -> list[np.ndarray]:
        """For every sentence an array (words, labels) of calibrated probabilities; the columns are ``classes_``."""
        check_is_fitted(self)
        results = self.tagger_.tag(_sentences(X), decoder=self.decoder, calls=self.calls, marginals=True)
        return [result.marginals for result in results if result.marginals is not None]

    def score(self, X: Sentences, y: Sentences) -> float:
        """The metric of the task, from 0 to 1: accuracy of tags, F1 of entities, F1 of words with their tags."""
        check_is_fitted(self)
        pairs = _pairs(X, y)
        task, scheme = self.tagger_.task, self.tagger_.scheme
        gold = [_legal(labels, scheme) for _, labels in pairs]
        found = score_sentences(task, scheme, gold, self.predict([words for words, _ in pairs]))
        return found[PRIMARY_METRICS[task]] / 100

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        # Sentences are lists of different lengths, which scikit-learn's own checks of arrays would refuse.
        tags.no_validation = True
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if "tagger_" in state:
            state = {**state, "tagger_": state["tagger_"].to_bytes()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "tagger_" in state:
            self.tagger_ = Tagger.from_bytes(state["tagger_"], device=self.device)


def _sentences(sentences: Sentences, *, name: str = "X", unit: str = "word") -> list[tuple[str, ...]]:
    if isinstance(sentences, str) or any(
        isinstance(each, str | Mapping) or not isinstance(each, Iterable) for each in sentences
    ):
        raise ValueError(f"{name} must be a list of sentences, each a list of {unit}s: split each sentence first")
    read = [tuple(each) for each in sentences]
    for index, values in enumerate(read):
        if wrong := [value for value in values if not isinstance(value, str)]:
            raise ValueError(
                f"sentence {index} of {name} has a {unit} that is not a string, but {type(wrong[0]).__name__} "
                f"({quoted(wrong[0])}): give the {unit}s themselves, as strings"
            )
    # Also of NumPy's strings, which are a subclass.
    return [tuple(map(str, values)) for values in read]


def _pairs(X: Sentences, y: Sentences) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    if y is None:
        raise ValueError("SequenceLabeller requires y to be passed, but the target y is None")
    check_consistent_length(X, y)
    if not len(X):
        raise ValueError("X holds no sentence, and at least one is needed")
    pairs = list(zip(_sentences(X), _sentences(y, name="y", unit="label"), strict=True))
    for index, (words, labels) in enumerate(pairs):
        if len(words) != len(labels):
            raise ValueError(f"sentence {index} has {len(words)} words but {len(labels)} labels")
    return pairs


def _legal(labels: Sequence[str], scheme: LabelScheme) -> Sequence[str]:
    """Gold labels, irregular ones repaired as those of training data are."""
    try:
        if scheme is not LabelScheme.PLAIN:
            check_sequence(labels, scheme)
        return labels
    except LabelError:
        return encode_spans(repair_spans(labels), len(labels), scheme)


def _ignore(progress: object) -> None:
    """Ignore progress."""
