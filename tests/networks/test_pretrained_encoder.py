"""States of pretrained encoders: pooling by hand, batches, windows, gradients, adapters, the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

import tiny_encoders
from tiny_encoders import ARCHITECTURES, SENTENCES, VOCABULARY, batch_of, tiny_encoder, write_encoder

from diffusion_mf.batches.batching import collate
from diffusion_mf.batches.layouts import PaddedLayout
from diffusion_mf.batches.packing import pack, shape_for
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.networks.encoders import PretrainedEncoder

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of an architecture, written when it is first asked for."""
    root = tmp_path_factory.mktemp("encoders")

    def folder(architecture: str) -> Path:
        path = root / architecture
        return path if path.exists() else write_encoder(path, architecture)

    return folder


@pytest.fixture(scope="module")
def folder(folder_of: Callable[[str], Path]) -> Path:
    return folder_of("bert")


@torch.no_grad()
def states(encoder: PretrainedEncoder, sentences: list[Sentence]) -> torch.Tensor:
    return encoder(batch_of(encoder, sentences))


@torch.no_grad()
def by_hand(encoder: PretrainedEncoder, sentence: Sentence, pooling: str) -> torch.Tensor:
    """One sentence, one unit at a time."""
    subword_ids = encoder.preparer.subword_ids
    ids, places = list(subword_ids.before), []
    for unit in sentence.units:
        text = (" " if "Ġ" in str(subword_ids.tokenizer.get_vocab()) else "") + unit
        cut = subword_ids.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        cut = cut or [subword_ids.tokenizer.unk_token_id]
        places.append(range(len(ids), len(ids) + len(cut)))
        ids += cut
    ids += subword_ids.after
    found = encoder.model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    if pooling == "first":
        return torch.stack([found[place[0]] for place in places])
    return torch.stack([sum(found[index] for index in place) / len(place) for place in places])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_pools_as_by_hand_in_any_batch(architecture: str, folder_of: Callable[[str], Path]) -> None:
    folder = folder_of(architecture)
    # Short enough for byte-level tokenizers, too, which make a lot of Chinese and emoji.
    sentences = [*SENTENCES[:2], Sentence(("vi", "\u3000", "mira", "\x07")), Sentence(("走", "mira", "[SEP]"))]
    for pooling in ("first", "mean"):
        encoder = tiny_encoder(folder, pooling=pooling)
        together = states(encoder, sentences)
        assert encoder.preparer.num_long == 0
        for row, sentence in enumerate(sentences):
            expected = by_hand(encoder, sentence, pooling)
            torch.testing.assert_close(together[row, : len(sentence.units)], expected, **TOLERANCE)
            alone = states(encoder, [sentence])[0]
            torch.testing.assert_close(together[row, : len(sentence.units)], alone, **TOLERANCE)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "deberta-v2", "modernbert"])
def test_the_longest_window_fits_the_model_and_a_longer_one_is_refused(
    architecture: str, folder_of: Callable[[str], Path]
) -> None:
    folder = folder_of(architecture)
    encoder = tiny_encoder(folder)
    assert encoder.preparer.settings.max_subwords == tiny_encoders.MAX_SUBWORDS
    found = states(encoder, [Sentence(("vi",) * 60)])
    assert encoder.preparer.num_long == 1
    assert found.isfinite().all()
    with pytest.raises(InputError, match="max_subwords is 25, but the encoder's limit is 24"):
        tiny_encoder(folder, max_subwords=25)


def test_windows_change_nothing_where_the_sentence_fits(folder: Path) -> None:
    whole, windowed = tiny_encoder(folder), tiny_encoder(folder, max_subwords=17, stride=3)
    torch.testing.assert_close(states(windowed, SENTENCES), states(whole, SENTENCES), **TOLERANCE)
    assert windowed.preparer.num_long == 0


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_a_long_sentence_has_the_states_of_its_windows(folder: Path, pooling: str) -> None:
    units = ("mira", "vi", "torosel", "vi", "mira", "torosel", "vi", "selto", "mira")
    encoder = tiny_encoder(folder, pooling=pooling, max_subwords=8, stride=4)
    found = states(encoder, [Sentence(("vi",)), Sentence(units)])[1]
    assert encoder.preparer.num_long == 1
    # Six subwords each: [mira vi toro-sel vi mira], [vi mira toro-sel vi sel-], [vi sel-to mira].
    first, third = (by_hand(encoder, Sentence(part), pooling) for part in (units[:5], units[6:]))
    subword_ids = encoder.preparer.subword_ids
    window = [*subword_ids.before, *subword_ids.of_units(units)[0][4:10].tolist(), *subword_ids.after]
    with torch.no_grad():
        second = encoder.model(input_ids=torch.tensor([window])).last_hidden_state[0]
    torosel = second[3] if pooling == "first" else (second[3] + second[4]) / 2
    expected = torch.stack([*first[:4], second[2], torosel, second[5], *third[1:]])
    torch.testing.assert_close(found, expected, **TOLERANCE)


def test_units_that_are_not_seen_have_the_learned_state(folder: Path) -> None:
    encoder = tiny_encoder(folder, on_long="truncate", truncate_units=2)
    found = states(encoder, [Sentence(("mira", "vi", "vi", "mira"))])[0]
    expected = states(tiny_encoder(folder), [Sentence(("mira", "vi"))])[0]
    torch.testing.assert_close(found[:2], expected, **TOLERANCE)
    assert found[2:].equal(encoder.missing_state.expand(2, -1))


def test_no_unknown_token_and_no_subword(tmp_path: Path) -> None:
    tokenizer = tiny_encoders.byte_level(use_unknown=False)
    encoder = tiny_encoder(write_encoder(tmp_path / "roberta", "roberta", tokenizer=tokenizer))
    encoder.preparer.subword_ids._known["gone"] = ()
    found = states(encoder, [Sentence(("mira", "gone"))])[0]
    assert found[1].equal(encoder.missing_state)
    assert not found[0].equal(encoder.missing_state)


def test_padding_changes_nothing_and_layouts_are_honoured(folder: Path) -> None:
    encoder = tiny_encoder(folder)
    batch = batch_of(encoder, SENTENCES)
    is_unit = torch.arange(batch.form_ids.shape[1]) < batch.lengths[:, None]
    with torch.no_grad():
        assert encoder(batch, PaddedLayout(is_unit)).equal(encoder(batch))


def test_a_batch_without_subwords_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="prepare_input"):
        tiny_encoder(folder)(collate(SENTENCES, VOCABULARY))


@pytest.mark.parametrize(("mix_layers", "chosen"), [(0, slice(0, 3)), (2, slice(1, 3)), (3, slice(0, 3))])
def test_layers_are_mixed(folder: Path, mix_layers: int, chosen: slice) -> None:
    encoder = tiny_encoder(folder, mix_layers=mix_layers)
    sentence = Sentence(("mira", "torosel", "vi"))
    ids = encoder.preparer.subword_ids.of_units(sentence.units)[0].tolist()
    with torch.no_grad():
        layers = encoder.model(input_ids=torch.tensor([[2, *ids, 3]]), output_hidden_states=True).hidden_states[chosen]
        assert encoder.mixture is not None
        encoder.mixture.weights.copy_(torch.arange(len(layers)) * 0.1)
    normal = [
        (layer[0] - layer[0].mean(-1, keepdim=True)) / layer[0].std(-1, correction=0, keepdim=True) for layer in layers
    ]
    shares = torch.arange(len(layers)).float().softmax(0)
    expected = sum(share * layer for share, layer in zip(shares, normal, strict=True))
    assert isinstance(expected, torch.Tensor)
    torch.testing.assert_close(states(encoder, [sentence])[0], expected[[1, 2, 4]], **TOLERANCE)
    assert "mixture.weights" in trained(encoder)


def test_more_layers_than_there_are(folder: Path) -> None:
    with pytest.raises(InputError, match="mix_layers is 4, but there are only 3 layers"):
        tiny_encoder(folder, mix_layers=4)


# What is trained.


def trained(encoder: PretrainedEncoder) -> set[str]:
    """The names of parameters that a loss moves."""
    encoder.train()
    encoder(batch_of(encoder, SENTENCES)).square().sum().backward()
    moved = {name for name, parameter in encoder.named_parameters() if parameter.grad is not None}
    assert moved == {name for name, parameter in encoder.named_parameters() if parameter.requires_grad}
    return {name.removeprefix("model.") for name in moved}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_weight_is_trained(architecture: str, folder_of: Callable[[str], Path]) -> None:
    encoder = tiny_encoder(folder_of(architecture))
    assert len(trained(encoder)) == len(list(encoder.parameters()))


def test_freezing(folder: Path) -> None:
    assert trained(tiny_encoder(folder, freeze="all")) == {"missing_state"}
    names = trained(tiny_encoder(folder, freeze="embeddings"))
    assert not [name for name in names if "embeddings" in name]
    assert [name for name in names if ".layer.0." in name]
    names = trained(tiny_encoder(folder, freeze_layers=1))
    assert not [name for name in names if "embeddings" in name or ".layer.0." in name]
    assert [name for name in names if ".layer.1." in name]
    with pytest.raises(InputError, match="freeze_layers is 3, but only 2 layers"):
        tiny_encoder(folder, freeze_layers=3)


def test_a_frozen_model_has_no_dropout(folder: Path) -> None:
    encoder = tiny_encoder(folder, freeze="all")
    expected = states(encoder, SENTENCES)
    encoder.train()
    assert states(encoder, SENTENCES).equal(expected)
    encoder = tiny_encoder(folder)
    encoder.train()
    assert not states(encoder, SENTENCES).equal(expected)


@pytest.mark.parametrize("architecture", ["bert", "modernbert", "deberta-v2"])
def test_gradient_checkpointing_changes_no_gradient(architecture: str, folder_of: Callable[[str], Path]) -> None:
    folder = folder_of(architecture)
    gradients = []
    for use in (False, True):
        encoder = tiny_encoder(folder, gradient_checkpointing=use)
        # Both at once would be warned of, and a cache is no use to an encoder.
        assert not (use and getattr(encoder.model.config, "use_cache", False))
        encoder.train()
        torch.manual_seed(1)
        encoder(batch_of(encoder, SENTENCES)).square().sum().backward()
        gradients.append({name: parameter.grad for name, parameter in encoder.model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


@pytest.mark.parametrize("architecture", ["bert", "albert", "modernbert"])
def test_low_rank_additions_begin_at_nothing_and_are_all_that_is_trained(
    architecture: str, folder_of: Callable[[str], Path]
) -> None:
    pytest.importorskip("peft")
    folder = folder_of(architecture)
    encoder = tiny_encoder(folder, lora_rank=2)
    torch.testing.assert_close(states(encoder, SENTENCES), states(tiny_encoder(folder), SENTENCES))
    names = trained(encoder)
    assert {name.split(".")[-3] for name in names - {"missing_state"}} == {"lora_A", "lora_B"}


def test_low_rank_additions_where_asked_for(folder: Path) -> None:
    pytest.importorskip("peft")
    names = trained(tiny_encoder(folder, lora_rank=2, lora_targets=("query",)))
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in names - {"missing_state"}} == {"query"}
    with pytest.raises(InputError, match="lora_targets match no layer"):
        tiny_encoder(folder, lora_rank=2, lora_targets=("quary",))


# The cache.


def test_cached_states_are_those_computed_and_are_computed_once(folder: Path, tmp_path: Path) -> None:
    settings = {"freeze": "all", "pooling": "mean", "on_long": "truncate", "truncate_units": 5}
    expected = states(tiny_encoder(folder, **settings), SENTENCES)
    for is_first in (True, False):
        encoder = tiny_encoder(folder, **settings, cache=str(tmp_path / "cache"))
        if not is_first:
            encoder.model.forward = None  # type: ignore[assignment]
        notes: list[str] = []
        encoder.study(SENTENCES, note=notes.append)
        assert any("cached in" in note for note in notes) == is_first
        encoder.model.forward = None  # type: ignore[assignment]
        found = states(encoder, SENTENCES)
        torch.testing.assert_close(found, expected, **TOLERANCE)
        assert found[2, 5:].equal(encoder.missing_state.expand(3, -1))
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize("change", [{"pooling": "mean"}, {"max_subwords": 9}, {"mix_layers": 0}, {"seed": 1}])
def test_other_settings_or_weights_have_other_states(folder: Path, tmp_path: Path, change: dict) -> None:
    cache = {"freeze": "all", "cache": str(tmp_path / "cache")}
    tiny_encoder(folder, **cache).study(SENTENCES, note=lambda text: None)
    if "seed" in change:
        folder = write_encoder(tmp_path / "other", **change)
        change = {}
    notes: list[str] = []
    tiny_encoder(folder, **cache, **change).study(SENTENCES, note=notes.append)
    assert any("cached in" in note for note in notes)


def test_a_damaged_cache_is_computed_again(folder: Path, tmp_path: Path) -> None:
    cache = {"freeze": "all", "cache": str(tmp_path / "cache")}
    tiny_encoder(folder, **cache).study(SENTENCES, note=lambda text: None)
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(file.read_bytes()[:100])
    encoder = tiny_encoder(folder, **cache)
    encoder.study(SENTENCES, note=lambda text: None)
    uncached = tiny_encoder(folder)
    torch.testing.assert_close(states(encoder, SENTENCES)[0, :4], states(uncached, SENTENCES)[0, :4], **TOLERANCE)


def test_what_a_user_should_know_of_the_sentences(folder: Path) -> None:
    notes: list[str] = []
    tiny_encoder(folder).study([Sentence(("mira",) * 40), Sentence(("vi",))], note=notes.append)
    assert notes == ["1 of 2 sentences are longer than the encoder's limit and are encoded in overlapping windows"]
    notes.clear()
    tiny_encoder(folder).study([Sentence(("ђ", "vi"))], note=notes.append)
    assert len(notes) == 1
    assert "is it meant for another language, or uncased" in notes[0]


def test_packed_batches(folder: Path) -> None:
    encoder = tiny_encoder(folder)
    batch = batch_of(encoder, SENTENCES)
    packed = pack(batch, shape_for(batch, budget=64, max_characters=40))
    assert packed.packing is not None
    with torch.no_grad():
        found = packed.packing.unpack(encoder(packed, packed.packing))
        expected = encoder(batch)
    is_unit = torch.arange(batch.form_ids.shape[1]) < batch.lengths[:, None]
    assert found[: len(SENTENCES), : batch.form_ids.shape[1]][is_unit].equal(expected[is_unit])
