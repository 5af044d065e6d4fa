"""The scikit-learn estimator: scikit-learn's own checks where they apply to sequences, and the others said for sentences."""

from __future__ import annotations

import pathlib
import pickle
import pickletools
import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

from diffusion_mf.errors import InputError
from diffusion_mf.sklearn import SequenceLabeller

SMALL: dict[str, Any] = {
    "encoder.width": 16,
    "encoder.heads": 2,
    "encoder.layers": 1,
    "encoder.word_width": 8,
    "encoder.character_width": 4,
    "encoder.character_hidden": 4,
    "denoiser.width": 16,
    "denoiser.heads": 2,
    "denoiser.time_width": 8,
    "structure.scorer_width": 8,
    "inference.num_calls": 2,
}
X = [["Ada", "sleeps"], ["Rome", "is", "old"], ["the", "Ada", "Lovelace", "of", "Rome"]] * 6
Y = [["B-PER", "O"], ["B-LOC", "O", "O"], ["O", "B-PER", "I-PER", "O", "B-LOC"]] * 6
TAGS = [["NOUN", "VERB"], ["NOUN", "VERB", "ADJ"], ["DET", "NOUN", "NOUN", "ADP", "NOUN"]] * 6


def estimator(system: str = "unigram", **options: Any) -> SequenceLabeller:
    return SequenceLabeller(system, **{"epochs": 2, "settings": SMALL, "device": "cpu"} | options)


@pytest.fixture(scope="module")
def fitted() -> SequenceLabeller:
    return estimator("diffusion-mf").fit(X, Y, dev=(X[:3], Y[:3]))


APPLICABLE = [
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_estimators_unfitted",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_requires_y_none",
]


@pytest.mark.parametrize("name", APPLICABLE)
def test_checks_of_scikit_learn(name: str) -> None:
    getattr(estimator_checks, name)("SequenceLabeller", estimator())


def test_the_documentation_lists_all_other_checks() -> None:
    """scikit-learn would run them on an estimator of matrices; of one of strings it runs none by itself."""

    class OfMatrices(SequenceLabeller):
        def __sklearn_tags__(self) -> Any:
            tags = super().__sklearn_tags__()
            tags.input_tags.two_d_array = True
            return tags

    checks = estimator_checks._yield_all_checks(OfMatrices("unigram"), legacy=True)
    others = {getattr(check, "func", check).__name__ for check in checks} - set(APPLICABLE)
    page = (pathlib.Path(__file__).parents[1] / "docs" / "tagging.md").read_text(encoding="utf-8")
    assert others == set(re.findall(r"`(check_\w+)`", page))


def test_fitting_returns_itself_and_leaves_parameters_alone() -> None:
    labeller = estimator()
    before = dict(vars(labeller))
    assert labeller.fit(X, Y) is labeller
    assert {name: value for name, value in vars(labeller).items() if not name.endswith("_")} == before
    after = {name: id(value) for name, value in vars(labeller).items()}
    labeller.predict(X)
    labeller.predict_marginals(X)
    labeller.score(X, Y)
    assert {name: id(value) for name, value in vars(labeller).items()} == after
    # The same seed, the same model.
    expected = [array.tolist() for array in labeller.predict_marginals(X)]
    assert [array.tolist() for array in labeller.fit(X, Y).predict_marginals(X)] == expected


def test_results_do_not_depend_on_the_order_or_the_number_of_sentences(fitted: SequenceLabeller) -> None:
    expected = fitted.predict(X)
    assert [list(map(len, expected))] == [[len(words) for words in X]]
    assert fitted.predict(X[::-1])[::-1] == expected
    assert [fitted.predict([words])[0] for words in X[:3]] == expected[:3]
    assert fitted.predict(np.array([*map(tuple, X)], dtype=object)) == expected
    assert fitted.predict([np.array(words) for words in X]) == expected
    assert fitted.predict([]) == []
    with pytest.raises(ValueError, match="sentence 1 of X has a word that is not a string"):
        fitted.predict([["Ada"], [None]])


def test_marginals_are_probabilities_of_the_classes(fitted: SequenceLabeller) -> None:
    labels, marginals = fitted.predict([*X, []]), fitted.predict_marginals([*X, []])
    assert list(fitted.classes_) == ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
    assert [array.shape for array in marginals] == [(len(row), 5) for row in labels]
    np.testing.assert_allclose(np.concatenate(marginals).sum(1), 1, atol=1e-5)
    results = fitted.tagger_.tag(X)
    for result, array in zip(results, marginals, strict=False):
        chosen = [array[index, list(fitted.classes_).index(label)] for index, label in enumerate(result.labels)]
        np.testing.assert_allclose(chosen, result.scores, atol=1e-6)


def test_a_pickle_holds_files_and_no_tensors(fitted: SequenceLabeller) -> None:
    data = pickle.dumps(fitted)
    names = {str(argument) for opcode, argument, _ in pickletools.genops(data) if opcode.name == "SHORT_BINUNICODE"}
    assert "diffusion_mf.sklearn" in names
    assert not any(name.startswith("torch") for name in names)
    again = pickle.loads(data)
    assert again.predict(X) == fitted.predict(X)
    assert again.get_params() == fitted.get_params()
    assert pickle.loads(pickle.dumps(estimator())).get_params() == estimator().get_params()


def test_clones_are_not_fitted(fitted: SequenceLabeller) -> None:
    twin = clone(fitted)
    assert twin.get_params() == fitted.get_params()
    for call in (twin.predict, twin.predict_marginals):
        with pytest.raises(NotFittedError):
            call(X)
    with pytest.raises(NotFittedError):
        twin.score(X, Y)


def test_cross_validation_grid_search_and_pipelines() -> None:
    scores = cross_val_score(estimator(), X, TAGS, cv=2, error_score="raise")
    assert scores.shape == (2,)
    assert ((scores >= 0) & (scores <= 1)).all()
    options = {**SMALL, "training.budget": 8, "training.warmup_steps": 1, "training.ema_decay": 0.0}
    grid = {"learning_rate": [1e-6, 0.03]}
    search = GridSearchCV(estimator(settings=options, epochs=4), grid, cv=2, error_score="raise")
    search.fit(X, TAGS, dev=(X[:3], TAGS[:3]))
    assert search.best_params_ == {"learning_rate": 0.03}
    assert search.best_score_ > search.cv_results_["mean_test_score"][0]
    assert search.predict(X[:1]) == search.best_estimator_.predict(X[:1])
    pipeline = make_pipeline(estimator()).fit(X, TAGS)
    assert pipeline.score(X, TAGS) == pipeline.named_steps["sequencelabeller"].score(X, TAGS)


def test_scores_are_the_metric_of_the_task(fitted: SequenceLabeller) -> None:
    predicted = fitted.predict(X)
    assert fitted.score(X, predicted) == 1.0
    found = fitted.tagger_.tag(X)
    gold = [{(0, 1, "PER")}, {(0, 1, "LOC")}, {(1, 3, "PER"), (4, 5, "LOC")}] * 6
    spans = [{span[:3] for span in result.spans} for result in found]
    right = sum(len(one & other) for one, other in zip(gold, spans, strict=True))
    total = sum(map(len, gold)) + sum(map(len, spans))
    assert fitted.score(X, Y) == pytest.approx(2 * right / total)
    # Irregular labels are repaired, as they are in training: I-PER after O begins a person.
    assert fitted.score(X, [[label.replace("B-", "I-") for label in labels] for labels in Y]) == fitted.score(X, Y)


@pytest.mark.parametrize(
    ("sentences", "labels", "message"),
    [
        (["Ada sleeps"], [["O", "O"]], "X must be a list of sentences, each a list of words"),
        ([["Ada"]], ["O"], "y must be a list of sentences, each a list of labels"),
        ([["Ada"]], [[]], "sentence 0 has 1 words but 0 labels"),
        ([["Ada"], ["Eve"]], [["O"]], "inconsistent numbers of samples"),
        ([], [], "X holds no sentence"),
        ([[{"word": "Ada"}]], [["O"]], "sentence 0 of X has a word that is not a string, but dict"),
        ([{"word": "Ada"}], [["O"]], "X must be a list of sentences, each a list of words"),
        (
            [["Ada"], ["Eve", None]],
            [["O"], ["O", "O"]],
            "sentence 1 of X has a word that is not a string, but NoneType",
        ),
        ([["Ada", float("nan")]], [["O", "O"]], r"a word that is not a string, but float \(nan\)"),
        ([[b"Ada"]], [["O"]], "not a string, but bytes"),
        ([["Ada", "left"]], [["O", 1]], r"sentence 0 of y has a label that is not a string, but int \(1\)"),
    ],
)
def test_what_is_wrong_with_data_is_said(sentences: Any, labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimator().fit(sentences, labels)


def test_numbers_of_numpy_are_numbers_and_generators_are_not() -> None:
    estimator(epochs=np.int64(1), random_state=np.int32(3)).fit(X, Y)
    with pytest.raises(InputError, match=r"RandomState.* is no value of a setting"):
        estimator(random_state=np.random.RandomState(0)).fit(X, Y)
    with pytest.raises(ValueError, match="dev must be a pair"):
        estimator().fit(X, Y, dev=X)


def test_wrong_settings_are_the_packages_errors() -> None:
    with pytest.raises(InputError, match="unigrm"):
        estimator("unigrm").fit(X, Y)


def test_training_is_silent_unless_asked(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    estimator().fit(X, Y)
    assert capfd.readouterr() == ("", "")
    # What was chosen is of interest, but no warning; what went wrong is one.
    assert not any("task: ner" in record.message for record in caplog.records)
    estimator(verbose=True).fit(X, Y)
    assert "epoch 2 of 2" in capfd.readouterr().err
