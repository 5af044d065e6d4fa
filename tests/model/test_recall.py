"""Recall: what a model believes about other occurrences of a word in its document reaches the denoiser, and nothing else does.

The same for the encoder's states, in every system.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny_models import KEYS, SENTENCES, VOCABULARY, small_config, small_labeller

from diffusion_mf.batches.batching import Batch, collate
from diffusion_mf.batches.layouts import CompactLayout, PaddedLayout
from diffusion_mf.batches.packing import PackedShape, pack
from diffusion_mf.config import DenoiserConfig, EncoderConfig
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.errors import InputError
from diffusion_mf.model.storage import StoredModel, load_model, save_model
from diffusion_mf.networks.denoisers import LabelDenoiser
from diffusion_mf.networks.recall import RecalledStates, mean_of_others

RECALL = {
    "denoiser": {"recall": 2},
    "diffusion": {"own_trajectory_share": 0.5, "own_trajectory_calls": 2, "clamp_share": 0.5},
}
SYSTEMS = ["diffusion-uni", "diffusion-mf", "diffusion-lcrf"]


def batch_in(*documents: int, recall: int = 2) -> Batch:
    """The four sentences, in these documents."""
    sentences = [sentence._replace(document=number) for sentence, number in zip(SENTENCES, documents, strict=True)]
    return collate(sentences, VOCABULARY, recall=recall)


def test_the_mean_is_over_the_others_that_are_there() -> None:
    beliefs = torch.rand(2, 3, 4)
    others = torch.tensor([[[1, 5], [3, -1], [-1, -1]], [[0, 1], [-1, -1], [-1, -1]]])
    found = mean_of_others(beliefs, others)
    torch.testing.assert_close(found[0, 0], (beliefs[0, 1] + beliefs[1, 2]) / 2)
    torch.testing.assert_close(found[0, 1], beliefs[1, 0])
    assert not found[0, 2].any()
    torch.testing.assert_close(found[1, 0], (beliefs[0, 0] + beliefs[0, 1]) / 2)


@pytest.mark.parametrize("layout", [PaddedLayout, CompactLayout.of_units])
def test_a_call_adds_the_embedded_mean(layout) -> None:
    torch.manual_seed(0)
    config = DenoiserConfig(layers=1, heads=2, width=8, dropout=0.0, time_width=8, recall=2)
    denoiser, plain = (
        LabelDenoiser(each, num_labels=4, state_width=5) for each in (config, config.model_copy(update={"recall": 0}))
    )
    assert not plain.load_state_dict(denoiser.state_dict(), strict=False).missing_keys
    batch = batch_in(1, 1, 1, 1)
    assert batch.others is not None
    lay = layout(torch.arange(7) < batch.lengths[:, None])
    beliefs, t = torch.rand(4, 7, 4), torch.tensor([5])
    conditions = denoiser.prepare(lay.pack(torch.randn(4, 7, 5)))
    # Silent at first, for its weights begin at zero.
    before = denoiser(beliefs, t, conditions, lay, None, batch.others)
    torch.testing.assert_close(before, plain(beliefs, t, conditions, lay))
    torch.nn.init.normal_(denoiser.recalled.weight)
    seen = []
    denoiser.transformer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    denoiser(beliefs, t, conditions, lay, None, batch.others)
    others = mean_of_others(beliefs, batch.others)
    expected = beliefs @ denoiser.labels.weight.T + others @ denoiser.recalled.weight.T
    assert others.any()
    torch.testing.assert_close(seen[0], lay.pack(expected))


def test_without_others_a_denoiser_with_recall_says_so() -> None:
    labeller = small_labeller("diffusion-mf", **RECALL).eval()
    with pytest.raises(ValueError, match="other occurrences"):
        labeller.predict(collate(SENTENCES, VOCABULARY))


@pytest.mark.parametrize("system", SYSTEMS)
def test_documents_matter_to_their_own_sentences_only(system: str) -> None:
    """Oda stands in sentences 0 and 2, Lu and Bay in 1 and 3."""
    labeller = small_labeller(system, **RECALL).eval()
    apart = labeller.predict(batch_in(1, 2, 3, 4)).marginals
    first_two = labeller.predict(batch_in(1, 2, 1, 2)).marginals
    only_one = labeller.predict(batch_in(1, 2, 1, 3)).marginals
    assert not torch.allclose(apart[0], first_two[0], atol=1e-4)
    torch.testing.assert_close(only_one[[0, 2]], first_two[[0, 2]])
    torch.testing.assert_close(only_one[[1, 3]], apart[[1, 3]])


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_first_call_cannot_know_what_others_say(system: str) -> None:
    """Beliefs begin uniform: after one call it makes no difference what stands around the other occurrence, later it does."""
    labeller = small_labeller(system, **RECALL).eval()
    one = [SENTENCES[0]._replace(document=1), SENTENCES[2]._replace(document=1)]
    two = [one[0], one[1]._replace(units=("Oda", "saw"), labels=("O", "O"))]
    for calls, is_same in ((1, True), (3, False)):
        found = [
            labeller.predict(collate(each, VOCABULARY, recall=2), num_calls=calls).marginals for each in (one, two)
        ]
        assert torch.allclose(found[0][0], found[1][0], atol=1e-5) == is_same


def test_a_clamp_reaches_other_sentences_of_the_document() -> None:
    labeller = small_labeller("diffusion-mf", **RECALL).eval()
    batch = batch_in(1, 2, 1, 3)
    allowed = torch.ones(4, 7, len(VOCABULARY.labels), dtype=torch.bool)
    free = labeller.predict(batch, allowed=allowed).marginals
    label = int(free[0, 1].argmin())
    allowed[0, 1] = torch.arange(len(VOCABULARY.labels)) == label
    held = labeller.predict(batch, allowed=allowed).marginals
    assert not torch.allclose(held[2, 0], free[2, 0], atol=1e-4)
    torch.testing.assert_close(held[[1, 3]], free[[1, 3]])


@pytest.mark.parametrize("system", SYSTEMS)
def test_losses_and_predictions_of_a_packed_batch_are_the_same(system: str) -> None:
    labeller = small_labeller(system, **RECALL).train()
    batch = batch_in(1, 1, 1, 2)
    num_words, num_characters = batch.character_ids.shape
    packed = pack(batch, PackedShape(int(batch.lengths.sum()) + 5, 7, 9, num_words + 2, num_characters + 1))
    for step in range(4):  # steps on noisy gold labels, and on the model's own beliefs
        terms = labeller.loss_sums(batch, seed=1, step=step, sentence_keys=KEYS)
        keys = torch.nn.functional.pad(KEYS, (0, 3))
        for name, value in labeller.loss_sums(packed, seed=1, step=step, sentence_keys=keys).items():
            torch.testing.assert_close(value, terms[name], rtol=1e-5, atol=1e-5)
    labeller.eval()
    found, expected = labeller.predict(packed).marginals, labeller.predict(batch).marginals
    torch.testing.assert_close(found[:4, :7], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("system", SYSTEMS)
def test_losses_and_gradients_do_not_depend_on_padding_being_left_out(system: str) -> None:
    labeller = small_labeller(system, structure={"transitions": "local"}, **RECALL).train()
    batch = batch_in(1, 1, 1, 2)
    for step in range(3):
        found = []
        for is_compact in (False, True):
            labeller.zero_grad()
            each = dataclasses.replace(batch, is_compact=is_compact)
            labeller.loss_sums(each, seed=1, step=step, sentence_keys=KEYS)["total"].backward()
            found.append({name: p.grad for name, p in labeller.named_parameters() if p.grad is not None})
        assert found[0].keys() == found[1].keys()
        for name, gradient in found[0].items():
            torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-5)


def test_recall_learns() -> None:
    labeller = small_labeller("diffusion-mf", **RECALL)
    choices = {labeller.choice(seed=1, step=step) for step in range(8)}
    assert None in {num_calls for num_calls, _ in choices}
    assert len(choices) > 1
    for step in range(8):
        labeller.loss_sums(batch_in(1, 1, 1, 1), seed=1, step=step, sentence_keys=KEYS)["total"].backward()
    for name in ("recalled", "known_others", "known_in_document"):
        gradient = labeller.get_parameter(f"core.denoiser.{name}.weight").grad
        assert gradient is not None
        assert gradient.abs().max() > 0


@pytest.mark.parametrize("layout", [PaddedLayout, CompactLayout.of_units])
def test_given_labels_are_seen_apart_from_beliefs(layout) -> None:
    config = DenoiserConfig(layers=1, heads=2, width=8, dropout=0.0, time_width=8, recall=2)
    assert LabelDenoiser(config, num_labels=4, state_width=5).known_others is None
    denoiser = LabelDenoiser(config, num_labels=4, state_width=5, sees_clamps=True)
    batch = batch_in(1, 2, 1, 2)
    lay = layout(torch.arange(7) < batch.lengths[:, None])
    conditions = denoiser.prepare(lay.pack(torch.randn(4, 7, 5)))
    # Oda stands at (0, 1) and (2, 0); of the other document nothing is given.
    known = torch.zeros(4, 7, 4)
    known[0, 0, 3] = known[0, 1, 2] = 1
    given = (lay, batch.others, batch.document_rows)
    silent = denoiser.with_known(conditions, known, *given).input
    assert silent is not None
    assert not silent.any()
    torch.nn.init.normal_(denoiser.known_others.weight)
    torch.nn.init.normal_(denoiser.known_in_document.weight)
    found = lay.unpack(denoiser.with_known(conditions, known, *given).input)
    in_document = denoiser.known_in_document.weight[:, [2, 3]].sum(1) * 0.5**0.5
    torch.testing.assert_close(found[0, :3], in_document.expand(3, 8))
    torch.testing.assert_close(found[2, 0], in_document + denoiser.known_others.weight[:, 2])
    assert not found[[1, 3]].any()


def test_a_given_label_informs_all_of_its_document() -> None:
    labeller = small_labeller("diffusion-mf", **RECALL).eval()
    batch = batch_in(1, 1, 2, 2)
    allowed = torch.ones(4, 7, len(VOCABULARY.labels), dtype=torch.bool)
    allowed[0, 2] = torch.arange(len(VOCABULARY.labels)) == VOCABULARY.label_ids["O"]
    free, held = labeller.predict(batch).marginals, labeller.predict(batch, allowed=allowed).marginals
    # “sleeps” stands nowhere else.
    assert not torch.allclose(held[1], free[1], atol=1e-4)
    torch.testing.assert_close(held[2:], free[2:])


def test_a_model_of_an_earlier_version_has_no_weights_for_them(tmp_path) -> None:
    labeller = small_labeller("diffusion-mf", **RECALL).eval()
    labeller.core.denoiser.known_others = labeller.core.denoiser.known_in_document = None
    model = StoredModel(labeller, labeller.config, VOCABULARY, LabelScheme.BMES, "argmax", 1.0, {})
    save_model(tmp_path / "model", model)
    loaded = load_model(tmp_path / "model").labeller
    assert not loaded.get_parameter("core.denoiser.known_others.weight").any()
    torch.testing.assert_close(
        loaded.predict(batch_in(1, 1, 1, 1)).marginals, labeller.predict(batch_in(1, 1, 1, 1)).marginals
    )


@pytest.mark.parametrize(("system", "recall"), [("diffusion-mf", 2), ("unigram", 0), ("diffusionsl", 0)])
def test_only_categorical_diffusion_recalls(system: str, recall: int) -> None:
    assert small_config(system, **RECALL).recall == recall


IN_STATES = [
    ("unigram", {"recall": 2}),
    ("unigram", {"recall": 2, "recall_of": "flag"}),
    ("lcrf", {"recall": 2, "recall_layers": 1}),
    ("diffusion-mf", {"recall": 2}),
    ("diffusionsl", {"recall": 2, "recall_layers": 1, "recall_of": "flag"}),
]
"""systems, and the recall of their encoders"""


@pytest.mark.parametrize("layout", [PaddedLayout, CompactLayout.of_units])
@pytest.mark.parametrize("recall_of", ["states", "flag"])
def test_a_state_sees_the_others_and_not_itself(layout, recall_of) -> None:
    torch.manual_seed(0)
    recall = RecalledStates(EncoderConfig(recall=2, recall_of=recall_of), 6)
    batch = batch_in(1, 2, 1, 2)
    lay = layout(torch.arange(7) < batch.lengths[:, None])
    states = torch.randn(4, 7, 6)
    torch.testing.assert_close(recall(lay.pack(states), batch.others, lay), lay.pack(states))  # zero at first
    torch.nn.init.normal_(recall.recalled.weight)
    added = (lay.unpack(recall(lay.pack(states), batch.others, lay)) - states) * lay.is_unit[..., None]
    # Oda stands at (0, 1) and (2, 0), Lu at (1, 4) and (3, 3), Bay at (1, 5) and (3, 1).
    pairs = [((0, 1), (2, 0)), ((1, 4), (3, 3)), ((1, 5), (3, 1))]
    expected = torch.zeros_like(added)
    for one, other in [*pairs, *(pair[::-1] for pair in pairs)]:
        seen = states[other] if recall_of == "states" else torch.ones(1)
        expected[one] = recall.recalled.weight @ seen
    torch.testing.assert_close(added, expected)


@pytest.mark.parametrize("layout", [PaddedLayout, CompactLayout.of_units])
def test_in_training_some_sentences_see_only_their_own_units(layout) -> None:
    recall = RecalledStates(EncoderConfig(recall=2, recall_dropout=0.5), 6)
    torch.nn.init.normal_(recall.recalled.weight)
    batch = batch_in(1, 1, 1, 1)
    lay = layout(torch.arange(7) < batch.lengths[:, None])
    states = lay.pack(torch.randn(4, 7, 6))
    places = torch.arange(4 * 7).view(4, 7, 1)
    # The first unit of every sentence recurs at the end of the same sentence, and in the next sentence.
    others = torch.full((4, 7, 2), -1)
    others[:, 0, 0] = places[:, 6, 0]
    others[:, 0, 1] = places[:, 0, 0].roll(-1)
    rows = torch.arange(4)[:, None, None]
    alone = recall.eval()(states, torch.where(others // 7 == rows, others, -1), lay)
    seen = recall(states, others, lay)
    recall.train()
    torch.manual_seed(0)
    counts = torch.zeros(2)
    for _ in range(50):
        firsts = [lay.unpack(each)[:, 0] for each in (recall(states, others, lay), alone, seen)]
        for found, one, both in zip(*firsts, strict=True):
            is_alone, is_whole = (torch.allclose(found, each, atol=1e-6) for each in (one, both))
            assert is_alone != is_whole
            counts[int(is_alone)] += 1
    assert 60 < counts[1] < 140


def test_the_loss_of_a_unit_reaches_the_states_of_the_others() -> None:
    labeller = small_labeller("unigram", encoder={"recall": 2})
    batch, found = batch_in(1, 2, 1, 2), []
    labeller.encoder.register_forward_hook(lambda *arguments: found.append(arguments[-1]))
    labeller.loss_sums(batch, seed=1, step=0, sentence_keys=KEYS)["total"].backward()
    assert labeller.recall.recalled.weight.grad.abs().max() > 0
    scores = labeller.core.scorer(labeller._states(batch, batch.layout), batch.layout).unary_scores
    (gradient,) = torch.autograd.grad(scores[0, 1].square().sum(), found[-1])
    assert {tuple(place) for place in gradient.abs().sum(-1).nonzero().tolist()} == {(0, 1), (2, 0)}


@pytest.mark.parametrize(("system", "encoder"), IN_STATES)
def test_states_of_a_document_do_not_depend_on_the_batch(system: str, encoder: dict) -> None:
    labeller = small_labeller(system, encoder=encoder).eval()
    apart, together = (labeller.predict(batch_in(*numbers)).marginals for numbers in ((1, 2, 3, 4), (1, 2, 1, 2)))
    assert not torch.allclose(apart[0], together[0], atol=1e-4)
    for document in ((0, 2), (1, 3)):
        chosen = [SENTENCES[index]._replace(document=1) for index in document]
        alone = labeller.predict(collate(chosen, VOCABULARY, recall=2)).marginals
        torch.testing.assert_close(alone, together[list(document), : alone.shape[1]])


@pytest.mark.parametrize(("system", "encoder"), IN_STATES)
def test_recalled_states_are_the_same_in_every_layout(system: str, encoder: dict) -> None:
    labeller = small_labeller(system, encoder=encoder).train()
    batch = batch_in(1, 1, 1, 2)
    num_words, num_characters = batch.character_ids.shape
    packed = pack(batch, PackedShape(int(batch.lengths.sum()) + 5, 7, 9, num_words + 2, num_characters + 1))
    found = []
    for each in (batch, dataclasses.replace(batch, is_compact=True), packed):
        labeller.zero_grad()
        keys = torch.nn.functional.pad(KEYS, (0, len(each.lengths) - 4))
        labeller.loss_sums(each, seed=1, step=1, sentence_keys=keys)["total"].backward()
        found.append({name: p.grad for name, p in labeller.named_parameters() if p.grad is not None})
    for other in found[1:]:
        for name, gradient in found[0].items():
            torch.testing.assert_close(other[name], gradient, rtol=1e-4, atol=1e-5)
    labeller.eval()
    expected = labeller.predict(batch).marginals
    torch.testing.assert_close(labeller.predict(packed).marginals[:4, :7], expected, rtol=1e-4, atol=1e-5)


def test_the_states_of_a_pretrained_encoder_recall(tmp_path) -> None:
    pytest.importorskip("transformers")
    import tiny_encoders

    folder = tiny_encoders.write_encoder(tmp_path / "bert", "bert")
    encoder = {"kind": "pretrained", "model": str(folder), "recall": 2, "recall_layers": 1}
    labeller = small_labeller("lcrf", encoder=encoder).eval()
    sentences = [
        sentence._replace(document=number)
        for sentence, number in zip(tiny_encoders.SENTENCES[:2] * 2, (1, 2, 1, 3), strict=True)
    ]
    batches = [
        collate(each, VOCABULARY, prepare_input=labeller.prepare_input, recall=2) for each in (sentences, sentences[:2])
    ]
    together, apart = (labeller.predict(batch).marginals for batch in batches)
    assert not torch.allclose(together[0], apart[0], atol=1e-4)
    torch.testing.assert_close(together[1], apart[1])


def test_a_flag_does_not_tell_what_the_others_are() -> None:
    one = [SENTENCES[0]._replace(document=1), SENTENCES[2]._replace(document=1)]
    two = [one[0], one[1]._replace(units=("Oda", "saw"), labels=("O", "O"))]
    for recall_of in ("flag", "states"):
        labeller = small_labeller("unigram", encoder={"recall": 2, "recall_of": recall_of}).eval()
        found = [labeller.predict(collate(each, VOCABULARY, recall=2)).marginals[0, :3] for each in (one, two)]
        assert torch.allclose(*found, atol=1e-5) == (recall_of == "flag")


def test_a_model_whose_states_recall_is_saved_and_loaded(tmp_path) -> None:
    labeller = small_labeller("lcrf", encoder={"recall": 2, "recall_layers": 1}).eval()
    model = StoredModel(labeller, labeller.config, VOCABULARY, LabelScheme.BMES, "viterbi", 1.0, {})
    save_model(tmp_path / "model", model)
    loaded, batch = load_model(tmp_path / "model").labeller, batch_in(1, 1, 1, 1)
    assert torch.equal(loaded.predict(batch).marginals, labeller.predict(batch).marginals)


def test_states_and_beliefs_can_be_recalled_together() -> None:
    labeller = small_labeller("diffusion-uni", encoder={"recall": 2}, denoiser={"recall": 2})
    labeller.loss_sums(batch_in(1, 1, 1, 1), seed=1, step=0, sentence_keys=KEYS)["total"].backward()
    for name in ("core.denoiser.recalled.weight", "recall.recalled.weight"):
        assert labeller.get_parameter(name).grad.abs().max() > 0
    with pytest.raises(ValueError, match="must be equal if both are set"):
        small_config("diffusion-uni", encoder={"recall": 2}, denoiser={"recall": 3})


def test_what_does_not_fit_is_said() -> None:
    labeller = small_labeller("unigram", encoder={"recall": 2}).eval()
    with pytest.raises(ValueError, match="other occurrences"):
        labeller.predict(collate(SENTENCES, VOCABULARY))
    with pytest.raises(InputError, match="a multiple of twice the heads, 8"):
        RecalledStates(EncoderConfig(recall=2, recall_layers=1), 20)
