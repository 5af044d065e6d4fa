"""Raw text: the rules by their examples, sentences, offsets, paragraphs."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from diffusion_mf.data.files import LIMIT_VARIABLE
from diffusion_mf.data.raw_text import (
    RULES,
    Rule,
    characters_of,
    read_paragraphs,
    read_raw_text,
    split_sentences,
    tokenize,
)
from diffusion_mf.errors import InputError


def tokens_of(text: str, language: str | None = None) -> list[str]:
    return [text[start:end] for start, end in tokenize(text, language=language)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_example_of_a_rule(rule: Rule) -> None:
    tokens = [token.replace("␣", " ") for token in re.split("[ |]", rule.example)]
    assert tokens_of(rule.example.replace("|", "").replace("␣", " "), rule.language) == tokens
    # Text that is split already stays so.
    if rule.name not in ("elided word", "verb before a clitic", "clitic after a verb"):
        assert tokens_of(" ".join(tokens), rule.language) == tokens


@pytest.mark.parametrize(("text", "expected", "language"), [
    ("It's Dr. Who, isn't it?", "It 's Dr. Who , is n't it ?", None),
    ('He said: "No."', 'He said : " No . "', None),
    ("don't can't won't they'll we’ve I'd Bush's dogs'", "do n't ca n't wo n't they 'll we ’ve I 'd Bush 's dogs '", None),
    ("L'ami d'Ada qu'il n'a vu aujourd'hui", "L' ami d' Ada qu' il n' a vu aujourd'hui", None),
    ("long-term e-mail", "long - term e-mail", "en"),
    ("long-term e-mail", "long-term e-mail", None),
    ("Est-ce vrai? A-t-il fini?", "Est -ce vrai ? A -t-il fini ?", "fr"),
    ("$5.50 (or 10%) at 10:30a", "$ 5.50 ( or 10 % ) at 10 : 30a", None),
    ("See http://a.org/b?c=1, or www.x.com.", "See http://a.org/b?c=1 , or www.x.com .", None),
    ("wow!!! really?! well... :-)", "wow !!! really ?! well ... :-)", None),
    ("the U.S. and #news @ada #1", "the U.S. and #news @ada # 1", None),
    ("中文 text。", "中 文 text 。", None),
    ("தமிழ் மொழி.", "தமிழ் மொழி .", None),
    ("No. I say no. No. 5", "No . I say no . No. 5", None),
    ("\ufeffa", "a", None),
])  # fmt: skip
def test_tokens(text: str, expected: str, language: str | None) -> None:
    assert tokens_of(text, language) == expected.split(" ")


@pytest.mark.parametrize(("text", "expected"), [
    ("Mr. Lee left. He was late.", ["Mr. Lee left.", "He was late."]),
    ('He said "No." Why? I see.', ['He said "No."', "Why?", "I see."]),
    ("It ended at 5 p.m. Then we left.", ["It ended at 5 p.m.", "Then we left."]),
    ("Well... maybe. J. R. Smith came!", ["Well... maybe.", "J. R. Smith came!"]),
    ("A heading\n\nA line\nthat goes on", ["A heading", "A line\nthat goes on"]),
    ("Version 2.5 is out (see below.) Good :) Yes", ["Version 2.5 is out (see below.)", "Good :) Yes"]),
    ("Fine. :-) Next one.", ["Fine. :-)", "Next one."]),
    ("你好。再见！", ["你好。", "再见！"]),
    ("Il dit : « Oui. » Puis il part.", ["Il dit : « Oui. »", "Puis il part."]),
])  # fmt: skip
def test_sentences(text: str, expected: list[str]) -> None:
    assert [text[tokens[0][0] : tokens[-1][1]] for tokens in split_sentences(text)] == expected


@given(st.text(alphabet=st.sampled_from("ab.'’ \n-!?\"A1,:中)👍\u0bcd"), max_size=30))
def test_tokens_hold_all_but_white_space(text: str) -> None:
    for language in (None, "en", "fr"):
        sentences = split_sentences(text, language=language)
        flat = [token for sentence in sentences for token in sentence]
        assert flat == tokenize(text, language=language)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(flat))
        assert "".join(text[start:end] for start, end in flat).split() == "".join(text.split()).split()
    assert "".join(text[start:end] for start, end in characters_of(text)) == "".join(text.split())


def test_paragraphs_are_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.raw"
    text = "\n\nA line.\r\nMore. Yes.\n \n\nNew\n\n"
    path.write_bytes(text.encode())
    paragraphs = list(read_paragraphs(path))
    assert "".join(paragraph.text for paragraph in paragraphs) == text
    assert [(paragraph.start, paragraph.line) for paragraph in paragraphs] == [(0, 1), (25, 7)]
    found = [(sentence.units, sentence.line, sentence.document) for sentence in read_raw_text(path)]
    assert found == [(("A", "line", "."), 3, 1), (("More", "."), 4, 1), (("Yes", "."), 4, 1), (("New",), 7, 1)]


def test_a_paragraph_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "1")
    path = tmp_path / "a.raw"
    path.write_text("word word word\n" * 100_000)
    with pytest.raises(InputError, match="more than"):
        list(read_raw_text(path))
