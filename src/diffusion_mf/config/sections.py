"""The sections of a configuration, ``[data]``, ``[encoder]`` and so on, with their defaults, and the presets of sizes.

Model sizes: about 20, 40, 60, 80 and 650 million parameters on English EWT, embeddings counted.

Paper: “Architectures” (appendix A.3). Conventional systems grow the encoder; diffusion systems keep theirs and grow the
denoiser. The paper publishes the totals only: the dimensions are ours.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, Self, get_args

import pydantic
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from diffusion_mf.data.conllu import ConlluColumn
from diffusion_mf.data.files import FieldChoice
from diffusion_mf.data.formats import FileFormat
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.sentence import Sentence

Size = Literal["XS", "S", "M", "L", "XL"]
SIZES: tuple[Size, ...] = get_args(Size)

MILLIONS_OF_PARAMETERS: dict[Size, int] = {"XS": 20, "S": 40, "M": 60, "L": 80, "XL": 650}

_WORDS = {"word_width": 304, "character_width": 64, "character_hidden": 128}
_DIRECT: dict[Size, dict[str, dict[str, int]]] = {
    "XS": {"encoder": {**_WORDS, "width": 512, "layers": 4, "heads": 8}},
    "S": {"encoder": {**_WORDS, "width": 640, "layers": 7, "heads": 10}},
    "M": {"encoder": {**_WORDS, "width": 704, "layers": 9, "heads": 11}},
    "L": {"encoder": {**_WORDS, "width": 832, "layers": 9, "heads": 13}},
    "XL": {"encoder": {**_WORDS, "width": 2048, "layers": 13, "heads": 16}},
}

_FIXED_ENCODER = {**_WORDS, "width": 512, "layers": 2, "heads": 8}
_DIFFUSION: dict[Size, dict[str, dict[str, int]]] = {
    "XS": {"encoder": _FIXED_ENCODER, "denoiser": {"width": 256, "layers": 3, "heads": 8}},
    "S": {"encoder": _FIXED_ENCODER, "denoiser": {"width": 512, "layers": 5, "heads": 8}},
    "M": {"encoder": _FIXED_ENCODER, "denoiser": {"width": 512, "layers": 8, "heads": 8}},
    "L": {"encoder": _FIXED_ENCODER, "denoiser": {"width": 640, "layers": 8, "heads": 16}},
    "XL": {"encoder": _FIXED_ENCODER, "denoiser": {"width": 2048, "layers": 11, "heads": 16}},
}


def preset(size: Size, *, is_diffusion: bool) -> dict[str, dict[str, Any]]:
    """The settings that ``size`` stands for, as sections of a configuration."""
    table = _DIFFUSION if is_diffusion else _DIRECT
    return {section: dict(values) for section, values in table[size].items()}


Share = Annotated[float, Field(ge=0, le=1)]
Dropout = Annotated[float, Field(ge=0, lt=1)]


def _check_heads(width: int, heads: int) -> None:
    # Rotary positions turn pairs of dimensions.
    if width % (2 * heads):
        raise ValueError(f"width must be a multiple of twice the heads, found width {width} with {heads} heads")


class Section(pydantic.BaseModel):
    """What all sections share: nothing unknown, nothing converted silently, nothing changed later."""

    # NaN and infinity are no setting of anything.
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


ColumnName = Annotated[str, pydantic.BeforeValidator(_number_as_text)]
"""the name of a column, or its number, which may be written as one"""


class DataConfig(Section):
    """The corpora; ``$NAME`` in a path stands for an environment variable, relative paths start where the command runs.

    An empty path names no file, for ``--set data.test=`` to take back what a configuration names.
    """

    train: str | None = None
    dev: str | None = None
    test: str | None = None
    column: Annotated[ConlluColumn, Field(strict=False)] | None = None
    """of CoNLL-U; None: upos for POS, xpos for Chinese"""
    scheme: Annotated[LabelScheme, Field(strict=False)] | None = None
    """of column files; None: detected"""
    format: Annotated[FileFormat, Field(strict=False)] | None = None
    """None: by the file's name"""
    form_column: ColumnName | None = None
    """of column files, a number counting from 1 or a name in the header line; None: detected"""
    tag_column: ColumnName | None = None
    """the same for the tags"""
    label_names: Annotated[tuple[str, ...], Field(strict=False)] | None = None
    """what the numbers stand for that a Hugging Face dataset has for tags"""
    language: str | None = None
    """of raw text, for its tokens: en splits words at hyphens, fr verbs from pronouns; None: the rules that all share"""
    strict: bool = False
    """refuse irregular tags and units without a form, which are repaired otherwise"""
    min_count: PositiveInt = 1
    """forms and characters seen less often in training are unknown"""
    lowercase: bool = False
    teacher: str | None = None
    """a model folder whose marginals for the training sentences are learnt, too; ``objective.teacher`` is their weight"""

    start: str | None = None
    """a model folder whose weights training begins with; its forms are kept beside those of the training sentences"""

    @pydantic.field_validator("train", "dev", "test", "teacher", "start")
    @classmethod
    def _empty_is_none(cls, path: str | None) -> str | None:
        return path or None

    @property
    def fields(self) -> FieldChoice:
        """What the settings say about the fields of files."""
        return FieldChoice(self.form_column, self.tag_column, self.label_names, self.language)

    def prepare(self, sentence: Sentence) -> Sentence:
        """The sentence as the model is to see it; vocabulary and batches are made of these."""
        return sentence._replace(units=tuple(unit.lower() for unit in sentence.units)) if self.lowercase else sentence


class EncoderConfig(Section):
    """Words, characters and a Transformer over them (kind scratch), or a pretrained Transformer (kind pretrained).

    Of the settings of scratch, pretrained knows ``dropout`` only: of its pooled states. Kind window, words and characters
    within a window, has no layers and heads.
    """

    kind: str = "scratch"
    """a key of `networks.encoders.ENCODERS`"""
    word_width: PositiveInt = 304
    character_width: PositiveInt = 64
    character_hidden: NonNegativeInt = 128
    """of the character LSTM, in each direction; 0: none, for units of one character"""
    affix_width: NonNegativeInt = 0
    """of the sum of embeddings of prefixes, suffixes and shape, which little data gains from; 0: none (paper)"""
    affix_dropout: Dropout = 0.2
    """how often an affix of a training word is hidden"""
    max_characters: PositiveInt = 20
    """of a word; of a longer one the first and the last half of so many"""
    width: PositiveInt = 512
    layers: NonNegativeInt = 4
    heads: PositiveInt = 8
    window: NonNegativeInt = 2
    """window: words seen on either side"""
    pair_width: NonNegativeInt = 0
    """of embeddings of pairs of neighbouring units, which Chinese gains from; 0: none (paper)"""
    min_pair_count: PositiveInt = 2
    """pairs seen less often in training are unknown"""
    word_dropout: Dropout = 0.4
    """how often a training word, or a pair of them, is replaced by unknown"""
    unit_dropout: Dropout = 0.0
    """scratch: how often nothing of a training unit is seen: neither word, nor spelling, nor pairs with it"""
    embedding_dropout: Dropout = 0.5
    dropout: Dropout = 0.3

    model: str | None = None
    """pretrained: a folder, in which ``$NAME`` stands for an environment variable, or a name on the Hugging Face hub"""
    revision: str | None = None
    """of a name on the hub"""
    pooling: Literal["first", "mean"] = "first"
    """pretrained: the state of a unit is that of its first subword, or the mean over its subwords"""
    mix_layers: NonNegativeInt = 1
    """pretrained: states are those of the last layer (1), or a learned mixture of so many upper layers; 0: of all of them"""
    on_long: Literal["window", "error", "truncate"] = "window"
    """pretrained: what becomes of sentences longer than the encoder can take"""
    truncate_units: PositiveInt = 256
    """pretrained: with on_long = "truncate", how many units the encoder sees (paper: 256)"""
    max_subwords: PositiveInt | None = None
    """pretrained: of a window, special ones included; None: what the encoder can take"""
    stride: PositiveInt | None = None
    """pretrained: subwords from the beginning of a window to that of the next; None: half of what a window holds"""
    freeze: Literal["none", "embeddings", "all"] = "none"
    freeze_layers: NonNegativeInt = 0
    """pretrained: so many layers, counted from below, are not trained, nor are the embeddings"""
    gradient_checkpointing: bool = False
    """pretrained: less memory, more time"""
    lora_rank: NonNegativeInt = 0
    """pretrained: 0: off; else the pretrained weights are frozen and low-rank additions to them are trained (peft)"""
    lora_alpha: PositiveFloat = 16.0
    lora_dropout: Dropout = 0.0
    lora_targets: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """names of linear layers; none: all of them"""
    cache: str | None = None
    """pretrained: a folder for the states of a frozen encoder, which are then computed only once"""

    @pydantic.model_validator(mode="after")
    def _heads_fit(self) -> Self:
        _check_heads(self.width, self.heads)
        return self

    @property
    def title(self) -> str:
        """What to call the encoder in tables: its kind, or its name on the hub or that of its folder."""
        if self.kind != "pretrained" or self.model is None:
            return self.kind
        is_path = self.model.count("/") > 1 or self.model.startswith((".", "/", "~"))
        return os.path.basename(os.path.normpath(self.model)) if is_path else self.model

    @pydantic.model_validator(mode="after")
    def _pretrained_fits(self) -> Self:
        if self.kind == "pretrained" and not self.model:
            raise ValueError("a pretrained encoder needs a model: a folder or a name on the hub")
        if self.kind == "scratch" and self.model:
            raise ValueError('a model is given, but kind is "scratch", not "pretrained"')
        if self.lora_rank and self.freeze_layers:
            raise ValueError("lora_rank freezes all layers, and adds to all of them: freeze_layers must be 0")
        if self.cache is not None and (self.freeze != "all" or self.lora_rank):
            raise ValueError(
                'states can be cached only where nothing changes them: cache needs freeze = "all", no LoRA'
            )
        return self


class DenoiserConfig(Section):
    """Diffusion-Transformer blocks; direct systems have none."""

    layers: PositiveInt = 6
    heads: PositiveInt = 8
    width: PositiveInt = 512
    dropout: Dropout = 0.3
    time_width: PositiveInt = 256
    """of the timestep embedding"""
    state_input: bool = False
    """add the encoder's states to the embedded labels, too, and not only to the modulations (ours)"""
    state_dropout: Dropout = 0.0
    """in training, the share of units whose state is hidden from the denoiser (ours)"""
    recall: Annotated[int, Field(ge=0, le=64)] = 0
    """categorical diffusion: so many other occurrences of a unit's form in its document whose beliefs are seen, too (ours)"""

    @pydantic.model_validator(mode="after")
    def _heads_fit(self) -> Self:
        _check_heads(self.width, self.heads)
        if self.time_width % 2:
            raise ValueError(f"time_width must be even, found {self.time_width}")
        return self


class StructureConfig(Section):
    """Scores and inference of the output distribution."""

    transitions: Literal["local", "global"] = "global"
    """a matrix for every place, from its state, or one learned matrix"""
    num_iterations: NonNegativeInt = 5
    """of Mean-Field"""
    scorer_width: PositiveInt = 256
    scorer_dropout: Dropout = 0.1


class DiffusionConfig(Section):
    """Noise and what the denoiser is trained on."""

    num_steps: Annotated[int, Field(ge=2)] = 1000
    cosine_power: PositiveFloat = 1.0
    cosine_offset: NonNegativeFloat = 0.008
    clamp_share: Share = 0.0
    """of the training sentences, those in which a random part of the labels is given, clean and flagged"""
    own_trajectory_share: Share = 0.0
    """of the training steps, those that continue the model's own beliefs instead of noisy gold labels"""
    own_trajectory_calls: NonNegativeInt = 3
    """at most so many calls lead to those beliefs"""


class BitsConfig(Section):
    """DiffusionSL's own settings."""

    scale: PositiveFloat = 0.1
    noise: Literal["linear", "cosine"] = "linear"
    num_calls: PositiveInt = 10
    """of DDIM"""
    eta: NonNegativeFloat = 0.0
    self_conditioning: bool = False
    num_samples: PositiveInt = 1
    projection: Literal["native", "nearest"] = "native"
    temperature: PositiveFloat = 0.05


class ObjectiveConfig(Section):
    """Weights of the loss terms; None is the system's own (`systems.SYSTEMS`)."""

    denoising: NonNegativeFloat | None = None
    sequence: NonNegativeFloat | None = None
    marginal: NonNegativeFloat | None = None
    posterior: NonNegativeFloat | None = None
    encoder_auxiliary: NonNegativeFloat = 0.0
    """of a scorer on the encoder's states, in diffusion systems"""
    teacher: NonNegativeFloat = 0.0
    """of the marginals of ``data.teacher``, in direct systems"""


class TrainingConfig(Section):
    """Optimisation."""

    epochs: PositiveInt = 50
    budget: PositiveInt = 5000
    """units of a batch, padding counted; subwords, with a pretrained encoder"""
    max_sentences: PositiveInt | None = None
    """of a batch, beside the budget"""
    accumulation: PositiveInt = 1
    optimizer: Literal["adam", "adamw"] = "adamw"
    learning_rate: PositiveFloat = 5e-4
    encoder_learning_rate: PositiveFloat | None = None
    """None: the same"""
    encoder_layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """a pretrained encoder's layer has this times the learning rate of the layer above it"""
    transition_learning_rate: PositiveFloat | None = None
    """of global transitions, which begin at 0 and move by no more than this in a step; None: the same as all others"""
    beta1: Dropout = 0.9
    beta2: Dropout = 0.98
    weight_decay: NonNegativeFloat = 0.01
    warmup_steps: NonNegativeInt = 500
    decay: Literal["none", "cosine", "linear"] = "cosine"
    clip_norm: PositiveFloat = 1.0
    ema_decay: Dropout = 0.999
    """0: off"""
    patience: NonNegativeInt = 0
    """epochs without a better dev score before training stops; 0: never"""
    evaluate_every: PositiveInt = 1
    """epochs"""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    layout: Literal["auto", "padded", "packed"] = "auto"
    """of units inside the networks: a rectangle, or one after the other; auto packs on a GPU in bfloat16"""
    use_graphs: bool = True
    """record the work on packed batches and replay it, on a GPU"""
    compile: bool = False
    """Transformer blocks, on a GPU: worth the minute it takes in long runs"""
    threads: PositiveInt | None = None
    log_every: PositiveInt = 50
    """steps"""


class InferenceConfig(Section):
    """The reverse process and the decoder."""

    base: Annotated[float, Field(gt=1)] = 2.0
    num_calls: PositiveInt | None = None
    """instead of a base"""
    decoder: Literal["argmax", "mask-viterbi", "viterbi", "native"] | None = None
    """None: the best on dev"""
    budget: PositiveInt = 20000
    """units of a batch, padding counted; subwords, with a pretrained encoder"""
    exit_tolerance: PositiveFloat | None = None
    """a sentence whose marginals change by less between two calls keeps them; calls end when all sentences of a batch do"""
    posterior: Literal["product", "mixture", "sampled"] = "product"
    """categorical diffusion: how beliefs at s follow from beliefs at t (`diffusion.Reading`); one trained model takes any"""
    scores_from: Literal["first", "last"] = "last"
    """the call whose marginals are reported; later ones take beliefs for more certain than they are"""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    layout: Literal["auto", "padded", "packed"] = "auto"
    """as in training"""

    def calls_and_base(self, num_calls: int | None, base: float | None) -> tuple[int | None, float | None]:
        """What makes the reverse schedule: what was asked for, else these settings; at most one of the two is given."""
        if num_calls is None and base is None:
            return (None, self.base) if self.num_calls is None else (self.num_calls, None)
        return num_calls, base
