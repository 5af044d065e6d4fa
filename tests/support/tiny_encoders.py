"""Pretrained encoders that nobody pretrained: random weights and tokenizers of a few invented words, in real folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from diffusion_mf.batches.batching import Batch, collate
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import EncoderConfig
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.networks.encoders import PretrainedEncoder

WIDTH = 16
MAX_SUBWORDS = 24
WORDS = ["mira", "selto", "dara", "vi", "Lanu", "torosel", "darvi", "lanumira", "vito", ".", "走", "好", "天"]
VOCABULARY = Vocabulary.build([Sentence(tuple(WORDS), ("A", "B") * 6 + ("A",))])

SENTENCES = [
    Sentence(("mira", "torosel", "Lanu", ".")),
    Sentence(("lanumira",)),
    Sentence(("vi", "darvi", "\u3000", "selto", "\x07", "🦜🏽", "dara", ".")),
    Sentence(("走", "好", "天", "[SEP]", "mira" * 9)),
]


def word_pieces() -> transformers.PreTrainedTokenizerFast:
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    starts = ["mira", "sel", "da", "dar", "vi", "la", "lanu", "toro", ".", "走", "好", "[", "]", "sep"]
    pieces = [*starts, *(f"##{piece}" for piece in ("mira", "sel", "to", "ra", "vi", "nu"))]
    vocabulary = {piece: index for index, piece in enumerate([*specials, *pieces])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
    )  # fmt: skip


def byte_level(*, use_unknown: bool = True) -> transformers.PreTrainedTokenizerFast:
    """As RoBERTa's and ModernBERT's: no space is put before the first word of its own accord."""
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS * 3)], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    unknown = {"unk_token": "<unk>"} if use_unknown else {}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", cls_token="<s>", sep_token="</s>", mask_token="<mask>", **unknown
    )


_SIZES = {
    "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "initializer_range": 0.4,
}  # fmt: skip
ARCHITECTURES: dict[str, Any] = {
    "bert": (transformers.BertConfig, word_pieces, {"max_position_embeddings": MAX_SUBWORDS}),
    "albert": (
        transformers.AlbertConfig, word_pieces, {"max_position_embeddings": MAX_SUBWORDS, "embedding_size": 8},
    ),
    # Position embeddings of these begin after padding, which is number 1.
    "roberta": (transformers.RobertaConfig, byte_level, {"max_position_embeddings": MAX_SUBWORDS + 2, "pad_token_id": 1}),
    "mpnet": (transformers.MPNetConfig, byte_level, {"max_position_embeddings": MAX_SUBWORDS + 2, "pad_token_id": 1}),
    "deberta-v2": (
        transformers.DebertaV2Config, word_pieces,
        {"max_position_embeddings": MAX_SUBWORDS, "relative_attention": True, "pos_att_type": ["c2p", "p2c"],
         "position_biased_input": False},
    ),
    "gpt2": (transformers.GPT2Config, byte_level, {"n_positions": MAX_SUBWORDS}),
    "modernbert": (
        transformers.ModernBertConfig, byte_level,
        {"max_position_embeddings": MAX_SUBWORDS, "pad_token_id": 1, "local_attention": 8, "cls_token_id": 0,
         "sep_token_id": 2, "bos_token_id": 0, "eos_token_id": 2},
    ),
}  # fmt: skip


def write_encoder(folder: Path, architecture: str = "bert", *, tokenizer: Any = None, seed: int = 0) -> Path:
    """A folder as of the hub: config.json, model.safetensors and the tokenizer's files."""
    kind, make_tokenizer, settings = ARCHITECTURES[architecture]
    tokenizer = tokenizer or make_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModel.from_config(kind(vocab_size=len(tokenizer), **_SIZES, **settings))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_encoder(folder: Path, **settings: Any) -> PretrainedEncoder:
    """The encoder of a folder, without dropout of our own, in evaluation."""
    values = {"kind": "pretrained", "model": str(folder), "dropout": 0.0, **settings}
    encoder = PretrainedEncoder(EncoderConfig.model_validate(values), VOCABULARY).eval()
    # The same in every encoder, so that padding compares equal, too.
    torch.nn.init.constant_(encoder.missing_state, 0.5)
    return encoder


def batch_of(encoder: PretrainedEncoder, sentences: list[Sentence]) -> Batch:
    return collate(sentences, VOCABULARY, prepare_input=encoder.prepare_input)
