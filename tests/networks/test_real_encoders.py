"""A real encoder, where its folder is at hand: DIFFUSION_MF_ENCODERS names the folder that holds albert-tiny-chinese."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from diffusion_mf.batches.batching import collate
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import Config, EncoderConfig
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.networks.encoders import PretrainedEncoder
from diffusion_mf.tagger import Tagger
from diffusion_mf.training.loop import train

FOLDER = Path(os.environ.get("DIFFUSION_MF_ENCODERS", "/nowhere")) / "albert-tiny-chinese"
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="DIFFUSION_MF_ENCODERS names no folder with albert-tiny-chinese"
)

# Sentences of our own, by character: boundary and whether it is a place, a person's act, or a mark.
WORDS = [
    "我/PN",
    "去/VV",
    "北京/NR",
    "看/VV",
    "朋友/NN",
    "。/PU",
    "她/PN",
    "在/P",
    "上海/NR",
    "学习/VV",
    "音乐/NN",
    "，/PU",
    "天气/NN",
    "很/RB",
    "好/JJ",
]


def sentence(start: int, length: int) -> Sentence:
    units, labels = [], []
    for index in range(length):
        word, _, tag = WORDS[(start + index * 7) % len(WORDS)].partition("/")
        size = len(word)
        units += list(word)
        labels += [f"{'S' if size == 1 else 'B' if place == 0 else 'E'}-{tag}" for place in range(size)]
    return Sentence(tuple(units), tuple(labels))


SENTENCES = [sentence(start, 4 + start % 5) for start in range(15)]
VOCABULARY = Vocabulary.build(SENTENCES)


def encoder(**settings) -> PretrainedEncoder:
    values = {"kind": "pretrained", "model": str(FOLDER), "dropout": 0.0, **settings}
    return PretrainedEncoder(EncoderConfig.model_validate(values), VOCABULARY).eval()


@torch.no_grad()
def states(model: PretrainedEncoder, sentences: list[Sentence]) -> torch.Tensor:
    return model(collate(sentences, VOCABULARY, prepare_input=model.prepare_input))


def test_characters_are_subwords_and_batches_change_nothing() -> None:
    model = encoder()
    together = states(model, SENTENCES)
    for row, each in enumerate(SENTENCES):
        ids = model.preparer.subword_ids.tokenizer(list(each.units), is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            expected = model.model(input_ids=ids["input_ids"]).last_hidden_state[0, 1:-1]
        assert len(expected) == len(each.units)
        torch.testing.assert_close(together[row, : len(each.units)], expected, rtol=1e-3, atol=1e-4)


def test_windows_come_close_to_the_whole() -> None:
    # With real weights, far context changes little: the states of windows point where those of the whole do.
    units = sum((each.units for each in SENTENCES), ())
    whole, windows = (states(encoder(max_subwords=limit), [Sentence(units)])[0] for limit in (512, 64))
    assert len(units) > 120
    similarity = torch.cosine_similarity(whole, windows, dim=-1)
    assert similarity.mean() > 0.9
    shuffled = torch.cosine_similarity(whole, windows.roll(1, 0), dim=-1)
    assert shuffled.mean() < similarity.mean() - 0.1


@pytest.mark.parametrize("system", ["unigram", "diffusion-mf"])
def test_it_learns_and_is_saved(system: str, tmp_path: Path) -> None:
    lines = []
    for each in SENTENCES:
        lines += [f"{unit} {label}" for unit, label in zip(each.units, each.labels or (), strict=True)] + [""]
    corpus = tmp_path / "train.txt"
    corpus.write_text("\n".join(lines), encoding="utf-8")
    config = Config.model_validate(
        {
            "task": "ner",
            "system": system,
            "data": {"train": str(corpus), "dev": str(corpus), "scheme": "bmes"},
            "encoder": {"kind": "pretrained", "model": str(FOLDER), "dropout": 0.0},
            "denoiser": {"width": 64, "heads": 2, "layers": 1, "time_width": 16, "dropout": 0.0},
            "structure": {"scorer_dropout": 0.0},
            "training": {
                "epochs": 12, "budget": 60, "learning_rate": 3e-3, "encoder_learning_rate": 1e-4, "warmup_steps": 2,
                "ema_decay": 0.0, "evaluate_every": 12,
            },
            "inference": {"num_calls": 3},
        }
    )  # fmt: skip
    folder = train(config, output=tmp_path / "run", device="cpu")
    tagger = Tagger.load(folder, device="cpu")
    results = tagger.tag([each.units for each in SENTENCES])
    right = sum(
        label == gold
        for result, each in zip(results, SENTENCES, strict=True)
        for label, gold in zip(result.labels, each.labels or (), strict=True)
    )
    assert right / sum(len(each.units) for each in SENTENCES) > 0.8
