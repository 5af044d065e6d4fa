"""Few distinct words, each used often: their gradients are sums over many units, which must not overflow on a GPU."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch

from diffusion_mf.errors import DivergenceError
from diffusion_mf.networks import words
from diffusion_mf.training.loop import train

LABELS = 28
WORDS = "abcdefghijkl"


def write_corpus_of_few_words(path: Path, *, seed: int) -> None:
    """Sentences of twelve words of one character; a label tells the word, and whether the one before was a vowel."""
    generator = random.Random(seed)
    lines = []
    for _ in range(200):
        words = generator.choices(WORDS, k=30)
        after_vowel = [False, *(word in "aei" for word in words[:-1])]
        lines += [
            f"{word}\tL{(WORDS.index(word) * 2 + int(after)) % LABELS}"
            for word, after in zip(words, after_vowel, strict=True)
        ]
        lines.append("")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.gpu
@pytest.mark.parametrize("has_fixed_scale", [False, True])
def test_gradients_of_words_that_occur_everywhere_do_not_overflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_fixed_scale: bool
) -> None:
    if has_fixed_scale:
        # What was done before: the gradient, times 4,096 whatever it is.
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
            ctx.scale.factor = torch.full((), 4096.0, device=grad.device)
            return grad.float() * ctx.scale.factor, None

        monkeypatch.setattr(words._Scaled, "backward", staticmethod(backward))
    write_corpus_of_few_words(tmp_path / "train.txt", seed=1)
    write_corpus_of_few_words(tmp_path / "dev.txt", seed=2)
    config = small_runs.small_config(
        tmp_path,
        small_runs.NO_DROPOUT,
        {
            "task": "pos",
            "data": {"format": "columns"},
            "encoder": {"character_hidden": 128, "character_width": 64},
            # A large loss, in few steps, for what takes thousands of them with an ordinary one.
            "objective": {"denoising": 3e6, "posterior": 3e6},
            "training": {"epochs": 3, "budget": 1000, "accumulation": 1, "warmup_steps": 0},
        },
    )
    # Where every gradient overflows, training gives up.
    with contextlib.suppress(DivergenceError):
        train(config, output=tmp_path / "run", device="cuda")
    skipped = [entry.get("skipped_steps", 0) for entry in small_runs.read_log(tmp_path / "run", "step")]
    assert (sum(skipped) > 0) == has_fixed_scale
