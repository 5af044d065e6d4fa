"""States by beginnings and endings, against the LSTM that reads every word from end to end."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffusion_mf.batches.batching import shorten, shortened
from diffusion_mf.batches.vocabulary import UNKNOWN_ID
from diffusion_mf.networks.known_words import KEPT_CHARACTERS, GrowingTable, KnownSpellings
from diffusion_mf.networks.words import CharacterLSTM

CHARACTER_IDS = {character: index for index, character in enumerate("abcdef", 2)}


def an_lstm(max_characters: int = 9) -> CharacterLSTM:
    torch.manual_seed(3)
    return CharacterLSTM(len(CHARACTER_IDS) + 2, width=5, hidden=4, max_characters=max_characters)


def read_whole(lstm: CharacterLSTM, words: list[str]) -> torch.Tensor:
    ids = torch.zeros(len(words), max(map(len, words)), dtype=torch.int64)
    for row, word in enumerate(words):
        ids[row, : len(word)] = torch.tensor([CHARACTER_IDS.get(character, UNKNOWN_ID) for character in word])
    with torch.no_grad():
        return lstm(ids, torch.tensor([len(word) for word in words]))


word_lists = st.lists(st.text("abcdefX", min_size=1, max_size=14), min_size=1, max_size=12)


@settings(deadline=None)
@given(kept=word_lists, words=word_lists, more=word_lists)
def test_vectors_are_those_of_the_lstm(kept: list[str], words: list[str], more: list[str]) -> None:
    lstm = an_lstm()
    spellings = KnownSpellings(lstm, CHARACTER_IDS)
    for asked, keep in ((words, False), (kept, True), (more, True), (words, False), (kept, False)):
        with torch.no_grad():
            found = spellings.vectors(asked, keep=keep)
        torch.testing.assert_close(found, read_whole(lstm, asked), rtol=1e-5, atol=1e-6)


def test_beginnings_and_endings_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    spellings = KnownSpellings(an_lstm(20), CHARACTER_IDS)
    steps: list[int] = []
    for direction in (spellings._from_left, spellings._from_right):
        inner = direction._step
        monkeypatch.setattr(direction, "_step", lambda keys, inner=inner: (steps.append(len(keys)), inner(keys))[1])

    def num_steps(words: list[str], *, keep: bool = False) -> int:
        steps.clear()
        with torch.no_grad():
            spellings.vectors(words, keep=keep)
        return sum(steps)

    # a, ab, abc, abd; and from the right c, cb, cba, d, db, dba, b, ba.
    assert num_steps(["abc", "abd", "ab"]) == 4 + 8
    assert num_steps(["abc", "abd", "ab"]) == 4 + 8
    assert num_steps(["abcdefabc"], keep=True) == 18
    assert num_steps(["abcdefabc"]) == 18 - 2 * KEPT_CHARACTERS
    assert num_steps(["abcdf"]) == 1 + 5
    assert num_steps(["defabc"]) == 6 + 1


def test_only_what_is_kept_takes_memory() -> None:
    spellings = KnownSpellings(an_lstm(30), CHARACTER_IDS)
    with torch.no_grad():
        spellings.vectors(["abcdef" * 5], keep=True)
        spellings.vectors(["fedcba" * 5, "bbb"])
    spellings.release()
    for direction in (spellings._from_left, spellings._from_right):
        assert direction._hidden.num_rows == direction._cells.num_rows == 1 + KEPT_CHARACTERS
        assert len(direction._hidden.memory) <= 2 * (1 + KEPT_CHARACTERS)


@given(word=st.text("abc", min_size=1, max_size=12), most=st.integers(1, 12))
def test_words_are_shortened_as_their_ids_are(word: str, most: int) -> None:
    ids = torch.tensor([[ord(character) for character in word]])
    expected, lengths = shorten(ids, torch.tensor([len(word)]), most)
    assert [ord(character) for character in shortened(word, most)] == expected[0, : lengths[0]].tolist()


def test_a_table_grows_keeps_its_rows_and_can_be_cut_in_and_out_of_inference_mode() -> None:
    table = GrowingTable(2)
    with torch.inference_mode():
        table.add(3).fill_(1)
    table.add(4).fill_(2)
    assert table.memory[: table.num_rows, 0].tolist() == [0, 1, 1, 1, 2, 2, 2, 2]
    table.cut(2)
    table.add(1).fill_(3)
    assert table.memory[: table.num_rows, 0].tolist() == [0, 1, 3]
    table.release()
    assert table.memory[: table.num_rows, 0].tolist() == [0, 1, 3]
    assert len(table.memory) == 4
