"""Very long sentences and words: cost that grows with their length and not with its square."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path

import pytest
import torch

from diffusion_mf.batches import layouts
from diffusion_mf.batches.layouts import CompactLayout, PaddedLayout
from diffusion_mf.data.formats import FileFormat, read_source
from diffusion_mf.data.repair import Repairs
from diffusion_mf.evaluation.reconstruction import majority
from diffusion_mf.ops.chain_scores import unit_mask


@pytest.fixture
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "LONGEST_WHOLE", 64)
    monkeypatch.setattr(layouts, "WINDOW", 16)


def _attend(kind: str, lengths: list[int], inputs: torch.Tensor) -> torch.Tensor:
    """(B, N, H, d), zero past each length."""
    is_unit = unit_mask(torch.tensor(lengths), inputs.shape[1])
    layout = PaddedLayout(is_unit) if kind == "padded" else CompactLayout.of_units(is_unit)
    found = layout.unpack(layout.attend(layout.pack(inputs), layout.rotation(inputs.shape[-1])))
    return found * is_unit[..., None, None]


@pytest.mark.parametrize("kind", ["padded", "compact"])
def test_units_of_a_long_sentence_see_their_neighbourhood(short_windows: None, kind: str) -> None:
    inputs = torch.randn(1, 96, 3, 2, 4, generator=torch.Generator().manual_seed(1))
    before = _attend(kind, [96], inputs)
    changed = inputs.clone()
    changed[:, 40] += 1
    difference = (_attend(kind, [96], changed) - before).abs().amax((0, 2, 3))
    # Position 40 is in the stretch 32…47, which is seen from 16…63.
    assert difference[16:64].min() > 0
    assert difference[:16].max() == difference[64:].max() == 0


@pytest.mark.parametrize("kind", ["padded", "compact"])
def test_short_sentences_do_not_notice_a_long_one_in_their_batch(short_windows: None, kind: str) -> None:
    inputs = torch.randn(3, 96, 3, 2, 4, generator=torch.Generator().manual_seed(1))
    lengths = [96, 64, 5]
    together = _attend(kind, lengths, inputs)
    assert together.isfinite().all()
    for row, length in enumerate(lengths):
        alone = _attend(kind, [length], inputs[row : row + 1, :length])
        torch.testing.assert_close(together[row, :length], alone[0])


def test_sentences_up_to_the_limit_are_attended_to_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = torch.randn(2, 64, 3, 2, 4, generator=torch.Generator().manual_seed(1))
    expected = _attend("padded", [64, 50], inputs)
    monkeypatch.setattr(layouts, "LONGEST_WHOLE", 64)
    monkeypatch.setattr(layouts, "WINDOW", 16)
    assert torch.equal(_attend("padded", [64, 50], inputs), expected)


def test_the_work_on_a_long_sentence_grows_with_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    products = 0
    attend = layouts._whole_attention

    def counting(query: torch.Tensor, key: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        nonlocal products
        products += query.shape[0] * query.shape[1] * key.shape[1]
        return attend(query, key, *rest)

    monkeypatch.setattr(layouts, "_whole_attention", counting)
    _attend("padded", [20_000], torch.zeros(1, 20_000, 3, 1, 2))
    assert products <= 20_000 * 3 * layouts.WINDOW


def test_votes_in_a_long_word_are_counted_once() -> None:
    comparisons = 0

    class Tag(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal comparisons
            comparisons += 1
            return str.__eq__(self, other)

    tags = [Tag("NN" if index % 3 else "VV") for index in range(3000)]
    assert majority(tags) == "NN"
    assert comparisons <= 10 * len(tags)


def _lines(number: int) -> str:
    return "a!\n" * number


def _texts(number: int) -> str:
    """Every sentence of one text has a span, and every second span overlaps the one before."""
    spans = [[3 * index, 3 * index + 1 + index % 2, "X"] for index in range(number)]
    return json.dumps({"text": _lines(number), "label": spans + spans})


@pytest.mark.parametrize(
    ("file_format", "write"),
    [(FileFormat.RAW, _lines), (FileFormat.RAW, lambda n: "a@" * n), (FileFormat.DOCCANO, _texts)],
)
def test_the_time_to_read_a_text_grows_with_its_length(file_format: FileFormat, write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def seconds(number: int) -> float:
        path = tmp_path / "text"
        path.write_text(write(number))
        start = time.process_time()
        assert sum(1 for _ in read_source(path, file_format, repairs=Repairs(path)).sentences)
        return time.process_time() - start

    def fastest(number: int) -> float:
        return min(seconds(number) for _ in range(3))

    seconds(10)  # builds the patterns
    gc.collect()
    gc.freeze()  # or the collector walks through what other tests have left, again and again
    try:
        assert fastest(16_000) < 8 * fastest(4_000), (
            "four times the text, sixteen times the time if it grows with the square"
        )
    finally:
        gc.unfreeze()
