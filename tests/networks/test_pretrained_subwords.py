"""Units to subwords: tokenizers of both kinds, odd units, and the tensors of a batch."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("transformers")

import tiny_encoders

from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.networks.pretrained import subwords as subword_ids_module
from diffusion_mf.networks.pretrained.subwords import SubwordIds, SubwordPreparer, WindowSettings

PIECES = SubwordIds(tiny_encoders.word_pieces())
BYTES = SubwordIds(tiny_encoders.byte_level())


def tokens(subword_ids: SubwordIds, unit: str) -> list[str]:
    return subword_ids.tokenizer.convert_ids_to_tokens(subword_ids.of_units((unit,))[0].tolist())


def preparer(**changes) -> SubwordPreparer:
    values = {"pooling": "mean", "on_long": "window", "truncate_units": 256, "max_subwords": 8, "stride": None}
    return SubwordPreparer(PIECES, WindowSettings(**{**values, **changes}))


def test_word_pieces() -> None:
    ids, counts = PIECES.of_units(("torosel", "Lanu", "."))
    assert PIECES.tokenizer.convert_ids_to_tokens(ids.tolist()) == ["toro", "##sel", "lanu", "."]
    assert counts.tolist() == [2, 1, 1]
    assert (PIECES.before, PIECES.after) == ((2,), (3,))


def test_a_sentence_is_cut_as_the_tokenizer_cuts_split_words() -> None:
    words = ["torosel", "Lanu", "vi", "darvi", "走", "."]
    expected = PIECES.tokenizer(words, is_split_into_words=True)["input_ids"]
    assert [*PIECES.before, *PIECES.of_units(tuple(words))[0].tolist(), *PIECES.after] == expected


def test_byte_level_units_have_a_space_before_them() -> None:
    text = "mira selto vi"
    ids, _ = BYTES.of_units(tuple(text.split()))
    # In the middle of a text, every word has its space.
    whole = BYTES.tokenizer(f". {text}", add_special_tokens=False)["input_ids"]
    assert ids.tolist() == whole[1:]
    assert tokens(BYTES, "mira")[0].startswith("Ġ")


@pytest.mark.parametrize("unit", ["\u3000", "\x07", " ", "\u200b", "\ufeff", "🦜🏽"])
def test_units_without_a_subword_are_unknown(unit: str) -> None:
    assert tokens(PIECES, unit) == ["[UNK]"]


def test_every_byte_is_a_subword_of_byte_level_tokenizers() -> None:
    assert len(tokens(BYTES, "\u3000")) >= 3
    assert BYTES.unknown_id not in BYTES.of_units(("🦜🏽",))[0]


@pytest.mark.parametrize("subword_ids", [PIECES, BYTES])
def test_half_a_surrogate_pair_is_a_replacement_character(subword_ids: SubwordIds) -> None:
    found, counts = subword_ids.of_units(("vi\ud83e", "vi\ufffd"))
    assert counts[0] == counts[1] > 0
    assert found[: counts[0]].tolist() == found[counts[0] :].tolist()


@pytest.mark.parametrize("unit", ["[SEP]", "[PAD]", "[MASK]"])
def test_what_looks_like_a_special_token_is_text(unit: str) -> None:
    specials = {PIECES.tokenizer.convert_tokens_to_ids(token) for token in ("[SEP]", "[PAD]", "[MASK]")}
    assert not specials & set(PIECES.of_units((unit,))[0].tolist())


def test_each_unit_is_given_to_the_tokenizer_once() -> None:
    subword_ids = SubwordIds(tiny_encoders.word_pieces())
    calls: list[list[str]] = []
    original = subword_ids._cut
    subword_ids._cut = lambda texts, **options: calls.append(texts) or original(texts, **options)  # type: ignore[method-assign, func-returns-value]
    subword_ids.learn(["mira", "vi", "mira"])
    subword_ids.of_units(("vi", "mira", "dara"))
    assert calls == [["mira", "vi"], ["dara"]]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subword_ids_module, "MAX_KNOWN_UNITS", 3)
    subword_ids = SubwordIds(tiny_encoders.word_pieces())
    for unit in tiny_encoders.WORDS:
        subword_ids.of_units((unit, "mira"))
        assert len(subword_ids._known) <= 3


def test_threads_may_share_a_tokenizer() -> None:
    subword_ids = SubwordIds(tiny_encoders.word_pieces())
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for index in range(200):
                subword_ids.of_units((f"{name}{index}", "mira"))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_tensors_of_a_batch() -> None:
    batch = preparer()([Sentence(("torosel", "vi")), Sentence(("mira",))])
    pad = PIECES.padding_id
    toro, sel, vi, mira = (PIECES.tokenizer.convert_tokens_to_ids(piece) for piece in ("toro", "##sel", "vi", "mira"))
    assert batch.ids.tolist() == [[2, toro, sel, vi, 3, pad, pad, pad], [2, mira, 3, pad, pad, pad, pad, pad]]
    assert batch.is_subword.sum(1).tolist() == [5, 3]
    assert batch.places.tolist() == [1, 2, 3, 9]
    assert batch.units.tolist() == [0, 0, 1, 2]
    assert batch.shares.tolist() == [0.5, 0.5, 1, 1]
    assert batch.has_state.tolist() == [[True, True], [True, False]]
    first = preparer(pooling="first")([Sentence(("torosel", "vi")), Sentence(("mira",))])
    assert first.places.tolist() == [1, 3, 9]
    assert first.units.tolist() == [0, 1, 2]
    assert first.shares.tolist() == [1, 1, 1]


def test_long_sentences_are_windows_or_errors_or_cut_and_counted() -> None:
    sentence = Sentence(("mira", "vi", "torosel", "selto", "vi", "vi", "mira"))
    windows = preparer()
    batch = windows([sentence, Sentence(("vi",))])
    assert windows.num_long == 1
    assert len(batch.ids) > 2
    assert batch.has_state[0].all()

    cut = preparer(on_long="truncate")
    # Six places for mira, vi, torosel, selto (two pieces each of the last two).
    assert cut([sentence]).has_state.tolist() == [[True] * 4 + [False] * 3]
    assert cut.num_long == 1
    assert preparer(on_long="truncate", truncate_units=2)([sentence]).has_state.tolist() == [[True] * 2 + [False] * 5]

    with pytest.raises(InputError, match=r"a sentence of 7 units \(mira vi torosel selto …\) has 9 subwords.* 6;"):
        preparer(on_long="error")([sentence])


def test_a_word_longer_than_a_window_keeps_all_its_subwords() -> None:
    batch = preparer()([Sentence(("vi", "mira" * 20, "vi"))])
    assert batch.units.bincount().tolist() == [1, 20, 1]
    assert len(set(batch.places.tolist())) == 22


def test_what_was_studied_comes_out_the_same() -> None:
    studied, fresh = preparer(), preparer()
    counts = studied.study([*tiny_encoders.SENTENCES, Sentence(("mira",) * 9)])
    assert (counts.num_sentences, counts.num_long, counts.num_units) == (5, 3, 27)
    first, second = studied(tiny_encoders.SENTENCES), fresh(tiny_encoders.SENTENCES)
    for name in ("ids", "is_subword", "places", "units", "shares", "has_state"):
        assert getattr(first, name).equal(getattr(second, name))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"max_subwords": 2}, "hold only the 2 special tokens"), ({"stride": 7}, "a stride of 7 would skip")],
)
def test_impossible_windows(settings, message) -> None:
    with pytest.raises(InputError, match=message):
        preparer(**settings)


def test_sizes_count_subwords() -> None:
    sentences = [Sentence(("torosel", "vi")), Sentence(()), Sentence(("mira",) * 20)]
    assert preparer().sizes(sentences) == [5, 0, 22]
