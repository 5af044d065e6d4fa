"""Splits raw text into sentences and tokens with character offsets, by rules for languages with spaces between words.

The rules follow Universal Dependencies: punctuation is separate, clitics are split off (do n't, it 's, l' ami), and abbreviations,
numbers, addresses, emoticons and ellipses stay whole. `RULES` lists them in order, each with an example. Treebanks differ on
hyphens: words are split at them only for the language ``en``. Each Chinese character is a token.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from diffusion_mf.data.files import SentenceLimits, StrPath, read_raw_lines
from diffusion_mf.data.sentence import Sentence

Offsets = tuple[int, int]
"""where a token begins and ends in its text, counting characters from 0; the end is exclusive"""


class Rule(NamedTuple):
    """A kind of token: its pattern, in which Ω is a letter, digit or mark of a word, and an example.

    In the example, a bar separates tokens without a space between them, and ␣ is a space inside a token.
    """

    name: str
    pattern: str
    example: str
    language: str | None = None
    """the language of the rule; None applies to all"""


_ABBREVIATIONS = (
    "Mr|Mrs|Ms|Messrs|Dr|Prof|Rev|Hon|Gen|Lt|Col|Sgt|Capt|Cpl|Maj|Adm|Gov|Sen|Rep|Pres|Sec|Supt|St|Ste|Mt|Ft|Ave"
    "|Blvd|Rd|Jr|Sr|Inc|Corp|Co|Ltd|Bros|Dept|Univ|Assn|Est|Fig|Vol|pp|vol|eds|cf|ca|vs|etc|approx|Jan|Feb|Mar|Apr"
    "|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec|Tue|Tues|Wed|Thu|Thur|Thurs|Fri|Sat|M|MM|Mme|Mmes|Mlle|Mgr|av|apr|env|hab|Bd"
    "|bzw|usw|evtl|ggf|inkl|zzgl|Hr|Fr|Str|Sra|Sr|Sta"
)
# Abbreviations that may also end a sentence, since no name follows them.
_FINAL_ABBREVIATIONS = frozenset({"etc.", "usw.", "inc.", "corp.", "co.", "ltd.", "jr.", "sr.", "a.m.", "p.m.", "hab."})
_EXTENSIONS = "com|org|net|edu|gov|mil|info|biz|io|tv|co\\.uk|ac\\.uk|de|fr|eu|ca|au|doc|docx|xls|xlsx|pdf|txt|jpe?g|png|gif|zip|html?|php|exe"
_ELIDED = "[cdjlmnst]|qu|jusqu|lorsqu|puisqu|quoiqu|presqu"
_CLITICS = "s|m|d|re|ve|ll"
_PREFIXES = (
    "e|pre|non|post|co|re|anti|multi|semi|ex|mid|sub|inter|intra|ultra|bi|un|de|pro|pseudo|quasi|neo|counter|self"
)
_HAN = "\u2e80-\u2fdf\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"

RULES = (
    Rule("address", r"(?:(?:https?|ftp)://|www\.)[^\s<>\"“”]*[^\s<>\"“”.,;:!?)\]}'’»]", "See http://a.org/b?c=1|, now"),
    Rule("e-mail", r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+", "ada.b@mail.org|."),
    Rule(
        "domain or file",
        rf"(?<![\w.])[\w-]{{1,64}}(?:\.[\w-]{{1,64}}){{0,4}}\.(?i:{_EXTENSIONS})(?!\w|\.\w)",
        "enron.com has a report.doc|.",
    ),
    Rule("emoji", "EMOJI", "good|👍🏽|👩‍💻|!"),
    Rule(
        "emoticon",
        r"(?<!\w)(?:[:;=]['o*^-]?[)(\]\[DpPoO/\\|}{3*]+|[xX]D+|<3+|\^[_.]?\^|[oO]_[oO])(?!\w)",
        "fine :-) :D|. <3",
    ),
    Rule("handle or hashtag", r"(?<!\w)[@#](?!\d)Ω+", "@ada wrote #news|, #|1"),
    Rule("decade", r"(?<!\w)['’]\d\ds?(?!\w)", "in the '90s"),
    Rule("run of one mark", r"[.!?]{2,}|(?P<mark>[-=*_~#<>+|^`'$])(?P=mark)+|’’|‘‘", "What|?! no|--|well|... ==="),
    Rule(
        "time, date or telephone number",
        r"(?<!\w)\d{1,4}(?:[:/]\d{1,4})+(?!\w)|(?<!\w)\d{3}-(?:\d{3}-)?\d{4}(?!\w)|(?<!\w)\d{1,2}-\d{1,2}-\d{2,4}(?!\w)",
        "10:30 on 5/12/2001|, call 713-853-1234",
    ),
    Rule("number", r"\d+(?:[.,]\d+)+(?:Ω*)", "1,234.5 and 3,5|%"),
    Rule("number with spaces", r"(?<!\w)\d{1,3}(?:[\u00a0\u202f]\d{3})+(?!\w)", "1\u00a0000\u00a0000 pages"),
    Rule("number with spaces", r"(?<!\w)\d{1,3}(?: \d{3})+(?![\w.,])", "80␣000 voix", "fr"),
    Rule("letters with periods", r"(?<![\w.])(?:[^\W\d_]\.){2,}(?:[^\W\d_](?!\w))?", "the U.S. at 5 p.m. today"),
    Rule(
        "abbreviation", rf"(?<![\w.])(?:(?:{_ABBREVIATIONS})\.(?!\w)|N(?:o|r|os)\.(?=\s*\d))", "Mr. Smith vs. Dr. No|."
    ),
    Rule("initial", r"(?<![\w.])[^\W\d_]\.(?=\s+[^\W\d_])(?<=[A-ZÀ-Þ]\.)", "W. Smith"),
    Rule("letters with an ampersand", r"(?<!\w)[A-Z]{1,3}&[A-Z]{1,3}(?!\w)", "AT&T and P&L"),
    Rule(
        "whole despite an apostrophe",
        r"(?<!\w)(?i:aujourd['’]hui|quelqu['’]une?s?|prud['’]hommes?|c['’]est-à-dire|l['’]on|o['’]clock)(?!\w)",
        "aujourd'hui à 5 o'clock",
    ),
    Rule("n't", r"(?i:n['’`]t)(?!\w)", "ca|n't|."),
    Rule("clitic", rf"['’`](?i:{_CLITICS})(?![\w'’])", "it|'s I|'ll we|’ve"),
    Rule("elided word", rf"(?<![\w'’])(?i:{_ELIDED})['’](?=[Ω«“\"])", "l'|ami qu'|il n'|a"),
    Rule("stem before n't", r"(?<!\w)[^\W\d_]+?(?=(?i:n['’`]t)(?!\w))", "do|n't wo|n't"),
    Rule(
        "cannot", r"(?<!\w)(?i:can(?=not(?!\w))|gon(?=na(?!\w))|wan(?=na(?!\w))|got(?=ta(?!\w)))", "I can|not|, gon|na"
    ),
    Rule(
        "verb before a clitic",
        r"(?<![\w-])Ω+?(?=-(?:t-)?(?:ils?|elles?|on|je|tu|nous|vous|ce|moi|toi|les?|la|lui|leur)(?![\w-]))",
        "Est|-ce vrai|, dit|-il",
        "fr",
    ),
    Rule(
        "clitic after a verb",
        r"(?<=\w)-(?:t-)?(?:ils?|elles?|on|je|tu|nous|vous|ce|moi|toi|les?|la|lui|leur)(?![\w-])",
        "A|-t-il fini|?",
        "fr",
    ),
    Rule("Chinese character", rf"[{_HAN}]", "中|文"),
    Rule(
        "word split at hyphens",
        rf"(?:(?i:{_PREFIXES})-(?=Ω))?Ω+(?:['’](?!(?i:{_CLITICS})(?!\w))Ω+)*",
        "a long|-|term e-mail co-worker O'Brien",
        "en",
    ),
    Rule("word", rf"Ω+(?:['’](?!(?i:{_CLITICS})(?!\w))Ω+|[-‐‑]Ω+)*", "a mother-in-law|, Ba'ath"),
    Rule("anything else", r"[^\s\ufeff]", "(|$|5|%|)|;"),
)


@functools.cache
def _pattern(language: str | None) -> re.Pattern[str]:
    # \w of re is only letters, digits and _; it lacks combining marks such as the vowel signs of Indian scripts.
    marks = "".join(chr(code) for code in range(0x300, 0x1F000) if unicodedata.category(chr(code)) in ("Mn", "Mc"))
    word = rf"(?:(?![{_HAN}])[\w{marks}\u200c\u200d])"
    picture = "[\u2600-\u27bf\u2b50\u2b55\U0001f000-\U0001faff]"
    emoji = f"{picture}(?:[\ufe0f\u20e3\U0001f3fb-\U0001f3ff]|\u200d{picture})*|[\U0001f1e6-\U0001f1ff]{{2}}"
    parts = [
        rule.pattern.replace("EMOJI", emoji).replace("[Ω", rf"[\w{marks}").replace("Ω", word)
        for rule in RULES
        if rule.language in (None, language)
    ]
    return re.compile(rf"(?=\S)(?:{'|'.join(f'(?:{part})' for part in parts)})")


_BREAK = re.compile(r"\n[^\S\n]*\n")
_CLOSING = frozenset("\"'”’»)]}›」』）’’''")
_OPENING = frozenset("\"'“‘«([{‹「『（*-–—•¿¡")
_IDEOGRAPHIC_END = frozenset("。！？｡")


def tokenize(text: str, *, language: str | None = None) -> list[Offsets]:
    """The offsets of the tokens of ``text``.

    >>> text = "It's Dr. Who!"
    >>> [text[start:end] for start, end in tokenize(text)]
    ['It', "'s", 'Dr.', 'Who', '!']
    """
    return [found.span() for found in _pattern(language).finditer(text)]


def split_sentences(text: str, *, language: str | None = None) -> list[list[Offsets]]:
    """The tokens of ``text``, sentence by sentence; a blank line ends a sentence, a single line end does not.

    >>> [len(tokens) for tokens in split_sentences("Mr. Lee left. He said \\"No.\\" Why?")]
    [4, 6, 2]
    """
    sentences: list[list[Offsets]] = []
    current: list[Offsets] = []
    tokens = tokenize(text, language=language)
    may_end = False  # whether the sentence may be complete, except for closing marks
    for index, (start, end) in enumerate(tokens):
        if current:
            gap = text[tokens[index - 1][1] : start]
            if _BREAK.search(gap) or (may_end and not _continues(text, tokens, index, gap)):
                sentences.append(current)
                current, may_end = [], False
        current.append((start, end))
        token = text[start:end]
        may_end = _ends(token) or (may_end and (token in _CLOSING or token[0] in ":;="))
    return [*sentences, current] if current else sentences


def _ends(token: str) -> bool:
    last = token[-1]
    if last in _IDEOGRAPHIC_END or (last in "!?…؟।॥" and not token[0].isalnum()):
        return True
    if last != ".":
        return False
    return not any(character.isalnum() for character in token) or token.lower() in _FINAL_ABBREVIATIONS


def _continues(text: str, tokens: list[Offsets], index: int, gap: str) -> bool:
    """Whether a token continues the sentence that may have ended before it."""
    start, end = tokens[index]
    token = text[start:end]
    previous = text[slice(*tokens[index - 1])]
    before = previous[-1]
    if before in _IDEOGRAPHIC_END:
        return token in _CLOSING
    if not gap:
        # A token without a space before it belongs to the sentence.
        return token in _CLOSING or not token[0].isupper() or before not in ".!?"
    follower = token
    if token[0] in _OPENING and len(token) == 1 and index + 1 < len(tokens):
        follower = text[slice(*tokens[index + 1])]
    # A closing mark or an emoticon after a space still belongs to the sentence before it.
    if _ends(token) or token[0] in ",;:=)]}”»":
        return True
    # Many people write without capitals, so one is required only after a mark that also occurs inside sentences.
    is_plain_end = set(previous) <= set(".!?") and previous not in ("..", "...")
    return follower[0].islower() and not is_plain_end


class Paragraph(NamedTuple):
    """The part of a text up to a blank line; ``start`` is its offset in the text, ``line`` the number of its first line."""

    text: str
    start: int
    line: int


def read_paragraphs(path: StrPath) -> Iterator[Paragraph]:
    """Stream the paragraphs of ``path`` with the blank lines after them; joined they are the file."""
    limits = SentenceLimits.from_environment()
    held: list[str] = []
    start, first, number = 0, 1, 0
    has_text = is_ended = False
    for number, line in enumerate(read_raw_lines(path, is_end=lambda line: not line.strip()), 1):
        is_blank = not line.strip()
        if is_ended and not is_blank:
            text = "".join(held)
            yield Paragraph(text, start, first)
            start, first = start + len(text), number
            held, has_text, is_ended = [], False, False
        held.append(line)
        has_text = has_text or not is_blank
        is_ended = has_text and is_blank
        if len(held) > 2 * limits.units:
            limits.refuse(f"no text in {len(held):,} lines", path, number, "check that this is the right file")
    if held:
        yield Paragraph("".join(held), start, first)


def characters_of(text: str) -> list[Offsets]:
    """The offsets of the characters that are not white space: the units of Chinese models."""
    return [
        (index, index + 1) for index, character in enumerate(text) if not character.isspace() and character != "\ufeff"
    ]


def joined_offsets(units: Sequence[str], separator: str = " ") -> list[Offsets]:
    """Where each of ``units`` begins and ends in the text that they are when joined by ``separator``.

    >>> joined_offsets(["Ada", "sings"])
    [(0, 3), (4, 9)]
    """
    gap = len(separator)
    ends = itertools.accumulate(len(unit) + gap for unit in units)
    return [(end - gap - len(unit), end - gap) for unit, end in zip(units, ends, strict=True)]


def read_raw_text(path: StrPath, *, language: str | None = None) -> Iterator[Sentence]:
    """Stream the unlabelled sentences of ``path``, which is one document."""
    limits = SentenceLimits.from_environment()
    for paragraph in read_paragraphs(path):
        line, position = paragraph.line, 0
        for tokens in split_sentences(paragraph.text, language=language):
            line, position = line + paragraph.text.count("\n", position, tokens[0][0]), tokens[0][0]
            sentence = Sentence(tuple(paragraph.text[start:end] for start, end in tokens), None, line, 1)
            limits.check_units(sentence, path)
            yield sentence
