"""The sections of a configuration (``[data]``, ``[encoder]``, …) with their defaults, and the size presets.

Sizes have about 20, 40, 60, 80 and 650 million parameters on English EWT, embeddings included.

Paper: “Architectures” (appendix A.3). Direct systems grow the encoder; diffusion systems keep a fixed encoder and grow the
denoiser. The paper publishes only the totals: the dimensions are ours.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, get_args

import pydantic
from pydantic import Field

from diffusion_mf.data.conllu import ConlluColumn
from diffusion_mf.data.files import FieldChoice, is_encodable
from diffusion_mf.data.formats import FileFormat
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.sentence import Sentence, with_normalised_handles

AUTO: Final = "auto"
"""the value of ``inference.num_calls`` by which dev data decide"""

Size = Literal["XS", "S", "M", "L", "XL"]
SIZES: tuple[Size, ...] = get_args(Size)

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


class Removed(NamedTuple):
    """A setting that earlier versions had."""

    note: str
    """why it is gone, or what there is instead"""
    default: Any
    """the value at which nothing changes without it"""
    is_for_training: bool
    """whether a finished model is the same without it, whatever its value was"""


REMOVED: dict[str, Removed] = {
    "denoiser.state_dropout": Removed("hiding states from the denoiser did not help", 0.0, is_for_training=True),
    "inference.exit_tolerance": Removed("use fewer calls (inference.num_calls)", None, is_for_training=False),
}
"""Settings that no longer exist, by their dotted names: saved models and runs may still hold them."""

Share = Annotated[float, Field(ge=0, le=1)]
Dropout = Annotated[float, Field(ge=0, lt=1)]

# Limits far beyond what is of use: a typing error or a damaged file is refused before memory is allocated for it.
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
Count = Annotated[int, Field(ge=1, le=10**9)]
CountFromZero = Annotated[int, Field(ge=0, le=10**9)]
Width = Annotated[int, Field(ge=1, le=1 << 14)]
WidthFromZero = Annotated[int, Field(ge=0, le=1 << 14)]
Layers = Annotated[int, Field(ge=0, le=256)]
Heads = Annotated[int, Field(ge=1, le=1 << 10)]
Recall = Annotated[int, Field(ge=0, le=64)]
Positive = Annotated[float, Field(gt=0, le=1e9)]
Weight = Annotated[float, Field(ge=0, le=1e9)]
Temperature = Annotated[float, Field(ge=1e-6, le=1e6)]
MOST_PARAMETERS = 10**10
"""of the blocks of a Transformer"""


def _check_blocks(width: int, heads: int, layers: int) -> None:
    if (number := 12 * width**2 * layers) > MOST_PARAMETERS:
        raise ValueError(
            f"{layers} layers of width {width} have {number / 1e9:,.0f} billion parameters, more than "
            f"{MOST_PARAMETERS // 10**9} billion"
        )
    # Rotary position embeddings rotate pairs of dimensions.
    if width % (2 * heads):
        raise ValueError(f"width must be a multiple of twice the heads, found width {width} with {heads} heads")


class Section(pydantic.BaseModel):
    """Base class of sections: unknown keys are refused, values are not converted silently, instances are immutable."""

    # NaN and infinity are not valid for any setting.
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @pydantic.field_validator("*")
    @classmethod
    def _text_can_be_saved(cls, value: Any) -> Any:
        if isinstance(value, str) and not is_encodable(value):
            raise ValueError("must be valid UTF-8; rename files whose names are in another encoding")
        return value


def _number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


ColumnName = Annotated[str, pydantic.BeforeValidator(_number_as_text)]
"""the name of a column, or its number, which may be given as an integer"""


class DataConfig(Section):
    """The corpora; ``$NAME`` in a path is an environment variable, and relative paths start at the current directory.

    An empty path means no file, so that ``--set data.test=`` removes the file that a configuration names. A configuration file may list
    several paths for a file, of which the first that exists is used.
    """

    train: str | None = None
    """the file to train on"""
    dev: str | None = None
    """the file that decides which epoch and decoder are best"""
    test: str | None = None
    """the file that the best model is scored on, once, at the end"""
    held_out: CountFromZero = 0
    """without ``dev``, hold out about this many training sentences as dev: whole documents where marked, chosen by the seed"""
    column: Annotated[ConlluColumn, Field(strict=False)] | None = None
    """of CoNLL-U; None: upos for POS, xpos for Chinese"""
    scheme: Annotated[LabelScheme, Field(strict=False)] | None = None
    """of column files; None: detected"""
    format: Annotated[FileFormat, Field(strict=False)] | None = None
    """None: from the file's name"""
    form_column: ColumnName | None = None
    """of column files: a number counting from 1, or a name in the header line; None: detected"""
    tag_column: ColumnName | None = None
    """the same for the tags"""
    label_names: Annotated[tuple[str, ...], Field(strict=False)] | None = None
    """the names of the labels that a Hugging Face dataset stores as numbers"""
    language: str | None = None
    """of raw text, for the tokenizer: en splits words at hyphens, fr splits verbs from pronouns; None: common rules only"""
    strict: bool = False
    """refuse irregular tags and units without a form instead of repairing them"""
    min_count: Count = 1
    """forms and characters seen less often than this in training are unknown"""
    lowercase: bool = False
    """whether the model sees forms in lower case"""
    normalise_handles: bool = False
    """the model sees ``@USER`` and ``HTTPURL`` instead of handles and links, in training and in use"""
    teacher: str | None = None
    """folder of a model whose marginals for the training sentences are learnt as well, with weight ``objective.teacher``"""

    start: str | None = None
    """folder of a model whose weights training starts from; its forms are kept beside those of the training sentences"""

    @pydantic.field_validator("train", "dev", "test", "teacher", "start")
    @classmethod
    def _empty_is_none(cls, path: str | None) -> str | None:
        return path or None

    @property
    def fields(self) -> FieldChoice:
        """The settings that choose the fields of files."""
        return FieldChoice(self.form_column, self.tag_column, self.label_names, self.language)

    def prepare(self, sentence: Sentence) -> Sentence:
        """The sentence as the model sees it; vocabulary and batches are built from these."""
        units = with_normalised_handles(sentence.units) if self.normalise_handles else sentence.units
        if self.lowercase:
            units = tuple(unit.lower() for unit in units)
        return sentence if units is sentence.units else sentence._replace(units=units)


class EncoderConfig(Section):
    """An encoder from scratch (words, characters and a Transformer), or a pretrained Transformer; see ``kind``.

    Of the settings for scratch, a pretrained encoder uses only ``dropout``, on its pooled states, and recall. Kind window sees words and
    characters within a window, and has no layers and heads.
    """

    kind: str = "scratch"
    """a key of `networks.encoders.ENCODERS`"""
    word_width: WidthFromZero = 304
    """of word embeddings; 0: none, for a window that has features"""
    character_width: Width = 64
    """of character embeddings"""
    character_hidden: WidthFromZero = 128
    """of the character LSTM, in each direction; 0: none, for units of one character"""
    affix_width: WidthFromZero = 0
    """of the sum of embeddings of prefixes, suffixes and shape, which little data gains from; 0: none (paper)"""
    affix_dropout: Dropout = 0.2
    """how often an affix of a training word is hidden"""
    max_characters: Annotated[int, Field(ge=1, le=10_000)] = 20
    """per word; of a longer word, the first and the last half of this many characters are read"""
    width: Width = 512
    """of the states; a multiple of twice the heads"""
    layers: Layers = 4
    """of the Transformer"""
    heads: Heads = 8
    """of attention"""
    positions: Literal["rotary", "none"] = "rotary"
    """scratch: how attention sees the order of the units; none: not at all (the paper does not say what its encoder does)"""
    window: Annotated[int, Field(ge=0, le=64)] = 2
    """window: number of words seen on either side"""
    features: bool = False
    """window: add vectors of words, affixes, shapes and pairs of words, one for each place in the window, as in a feature-based tagger"""
    min_feature_count: Count = 1
    """window: words with a feature must be seen this often in training; 2 makes such a model half as large"""
    pair_width: WidthFromZero = 0
    """width of embeddings of pairs of neighbouring units, which help in Chinese; 0: none (paper)"""
    min_pair_count: Count = 2
    """pairs seen less often than this in training are unknown"""
    word_dropout: Dropout = 0.4
    """probability that a training word, or a pair of words, is replaced by unknown"""
    unit_dropout: Dropout = 0.0
    """scratch: probability that a training unit is hidden completely: its word, its spelling and its pairs"""
    embedding_dropout: Dropout = 0.5
    """on the words' vectors"""
    dropout: Dropout = 0.3
    """inside the Transformer; of the other kinds, on the states"""
    recall: Recall = 0
    """how many other occurrences of a unit's form in its document its state has seen, whatever the kind and the system (ours)"""
    recall_of: Literal["states", "flag"] = "states"
    """with recall: what is seen of them, the mean of their states, or only that there are any"""
    recall_layers: Layers = 0
    """with recall: Transformer layers that follow, so that the neighbours of a recurring unit see it, too"""
    recall_dropout: Dropout = 0.0
    """with recall: share of the training sentences that see none of other sentences, so that the model can do without documents"""

    model: str | None = None
    """pretrained: a folder (``$NAME`` is an environment variable), or a name on the Hugging Face hub"""
    revision: str | None = None
    """of a model on the hub"""
    pooling: Literal["first", "mean"] = "first"
    """pretrained: the state of a unit is the state of its first subword, or the mean over its subwords"""
    mix_layers: Layers = 1
    """pretrained: states come from the last layer (1), or are a learned mixture of this many top layers; 0: of all layers"""
    on_long: Literal["window", "error", "truncate"] = "window"
    """pretrained: what to do with sentences that are longer than the encoder's limit"""
    truncate_units: Count = 256
    """pretrained: with on_long = "truncate", how many units the encoder sees (paper: 256)"""
    max_subwords: Count | None = None
    """pretrained: size of a window, special tokens included; None: the encoder's limit"""
    stride: Count | None = None
    """pretrained: subwords from the start of one window to the start of the next; None: half a window"""
    freeze: Literal["none", "embeddings", "all"] = "none"
    """pretrained: which weights are not trained"""
    freeze_layers: Layers = 0
    """pretrained: freeze the embeddings and this many of the lowest layers"""
    gradient_checkpointing: bool = False
    """pretrained: saves memory, costs time"""
    lora_rank: WidthFromZero = 0
    """pretrained: 0: off; otherwise the pretrained weights are frozen and low-rank updates are trained (peft)"""
    lora_alpha: Positive = 16.0
    """the scale of low-rank updates, relative to their rank"""
    lora_dropout: Dropout = 0.0
    """on the input of low-rank updates"""
    lora_targets: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """names of linear layers; empty: all of them"""
    cache: str | None = None
    """pretrained: folder that caches the states of a frozen encoder, so that they are computed only once"""

    @pydantic.model_validator(mode="after")
    def _heads_fit(self) -> Self:
        _check_blocks(self.width, self.heads, self.layers)
        return self

    @property
    def title(self) -> str:
        """The encoder's name in tables: its kind, its name on the hub, or the name of its folder."""
        if self.kind != "pretrained" or self.model is None:
            return self.kind
        is_path = self.model.count("/") > 1 or self.model.startswith((".", "/", "~"))
        return os.path.basename(os.path.normpath(self.model)) if is_path else self.model

    @pydantic.model_validator(mode="after")
    def _pretrained_fits(self) -> Self:
        if self.kind == "pretrained" and not self.model:
            raise ValueError("a pretrained encoder needs a model: a folder or a name on the hub")
        if self.word_width == 0 and not (self.kind == "window" and self.features):
            raise ValueError('word_width can be 0 only if kind is "window" and features is true')
        if self.features and self.kind != "window":
            raise ValueError('features need kind = "window"')
        if self.kind == "scratch" and self.model:
            raise ValueError('a model is given, but kind is "scratch", not "pretrained"')
        if self.lora_rank and self.freeze_layers:
            raise ValueError("lora_rank already freezes all layers: freeze_layers must be 0")
        if self.cache is not None and (self.freeze != "all" or self.lora_rank):
            raise ValueError(
                'states can be cached only if nothing changes them: cache needs freeze = "all" and no LoRA'
            )
        return self


class DenoiserConfig(Section):
    """Diffusion-Transformer blocks; direct systems have none."""

    layers: Annotated[Layers, Field(ge=1)] = 6
    """the number of blocks"""
    heads: Heads = 8
    """of attention"""
    width: Width = 512
    """of the blocks; a multiple of twice the heads"""
    dropout: Dropout = 0.3
    """inside the blocks"""
    time_width: Width = 256
    """of the timestep embedding"""
    state_input: bool = False
    """add the encoder's states to the label embeddings, too, and not only to the modulation (ours)"""
    state_scores: bool = False
    """categorical diffusion: the denoiser sees labels alone, and its scores are added to scores of the encoder's states (ours)"""
    recall: Recall = 0
    """categorical diffusion: how many other occurrences of a unit's form in its document contribute their beliefs (ours)"""

    @pydantic.model_validator(mode="after")
    def _heads_fit(self) -> Self:
        _check_blocks(self.width, self.heads, self.layers)
        if self.state_scores and self.state_input:
            raise ValueError("state_input must be false if state_scores is true: the denoiser then sees no states")
        if self.time_width % 2:
            raise ValueError(f"time_width must be even, found {self.time_width}")
        return self


class StructureConfig(Section):
    """Scores and inference of the output distribution."""

    transitions: Literal["local", "global"] = "global"
    """local: a matrix per position, computed from its state; global: one learned matrix"""
    num_iterations: Annotated[int, Field(ge=0, le=1000)] = 5
    """of Mean-Field"""
    scorer_width: Width = 256
    """of the hidden layer that computes scores from states"""
    scorer_dropout: Dropout = 0.1
    """on that layer"""


class DiffusionConfig(Section):
    """The noise, and what the denoiser is trained on."""

    num_steps: Annotated[int, Field(ge=2, le=100_000)] = 1000
    """T, the number of noise steps"""
    cosine_power: Annotated[float, Field(gt=0, le=100)] = 1.0
    """p of the cosine schedule; 2 is the square that Gaussian diffusion uses"""
    cosine_offset: Weight = 0.008
    """s of the cosine schedule"""
    clamp_share: Share = 0.0
    """share of training steps in which some labels are given, without noise and flagged, as annotators would confirm them"""
    own_trajectory_share: Share = 0.0
    """share of training steps that start from the model's own beliefs instead of noisy gold labels"""
    own_trajectory_calls: Annotated[int, Field(ge=0, le=1000)] = 3
    """the largest number of calls that lead to those beliefs"""


class BitsConfig(Section):
    """Settings of DiffusionSL."""

    scale: Positive = 0.1
    """s of the codes ±s"""
    noise: Literal["linear", "cosine"] = "linear"
    """the schedule of Gaussian noise"""
    num_calls: Annotated[int, Field(ge=1, le=100_000)] = 10
    """of DDIM"""
    eta: Weight = 0.0
    """the randomness of DDIM; 0: none"""
    self_conditioning: bool = False
    """whether the denoiser also sees the bits that its last call predicted"""
    num_samples: Annotated[int, Field(ge=1, le=1000)] = 1
    """reverse processes whose predictions are averaged"""
    projection: Literal["native", "nearest"] = "native"
    """from bits to a label: threshold at 0, where some patterns are no label, or the nearest code"""
    temperature: Temperature = 0.05
    """τ of the unary scores that Mask-Viterbi reads"""


class ObjectiveConfig(Section):
    """Weights of the loss terms; None: the system's own weight (`systems.SYSTEMS`)."""

    denoising: Weight | None = None
    """of L_den, the cross-entropy of the marginals"""
    sequence: Weight | None = None
    """of L_seq, the negative log-likelihood of the label sequence"""
    marginal: Weight | None = None
    """of L_marg, the cross-entropy of a chain's exact marginals"""
    posterior: Weight | None = None
    """of L_post, the divergence from the true reverse step"""
    encoder_auxiliary: Weight = 0.0
    """of the scorer on the encoder's states, in diffusion systems"""
    teacher: Weight = 0.0
    """of the marginals of ``data.teacher``, in direct systems"""


class TrainingConfig(Section):
    """Optimisation."""

    epochs: Annotated[int, Field(ge=1, le=100_000)] = 50
    """passes over the training data"""
    max_steps: Count | None = None
    """updates after which training ends, even within an epoch; None: with the last epoch"""
    budget: Count = 5000
    """units per batch, padding included; subwords, with a pretrained encoder"""
    max_sentences: Count | None = None
    """per batch, in addition to the budget"""
    accumulation: Count = 1
    """batches per update"""
    optimizer: Literal["adam", "adamw"] = "adamw"
    """how gradients become updates"""
    learning_rate: Positive = 5e-4
    """at its highest, after the warm-up"""
    encoder_learning_rate: Positive | None = None
    """None: ``learning_rate``"""
    encoder_layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """each layer of a pretrained encoder has this times the learning rate of the layer above it"""
    transition_learning_rate: Positive | None = None
    """of global transitions, which start at 0 and move by at most this per step; None: ``learning_rate``"""
    beta1: Dropout = 0.9
    """the decay of the mean of gradients"""
    beta2: Dropout = 0.98
    """the decay of the mean of their squares"""
    weight_decay: Weight = 0.01
    """of all weights but biases and gains"""
    warmup_steps: CountFromZero = 500
    """updates over which the learning rate rises from 0"""
    decay: Literal["none", "cosine", "linear"] = "cosine"
    """how the learning rate falls to 0 at the end"""
    clip_norm: Positive = 1.0
    """the largest norm of a gradient"""
    ema_decay: Dropout = 0.999
    """of the moving average of the weights; 0: off"""
    patience: CountFromZero = 0
    """number of epochs without a better dev score after which training stops; 0: never"""
    evaluate_every: Count = 1
    """epochs"""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """of the networks; auto is bfloat16 on a GPU that has it"""
    storage: Literal["float32", "float16", "int8"] = "float32"
    """type of the weights in the model folder; int8 has one scale per row of a matrix; in use all are float32"""
    layout: Literal["auto", "padded", "packed"] = "auto"
    """of units inside the networks: padded to a rectangle, or packed; auto packs on a GPU in bfloat16"""
    use_graphs: bool = True
    """record the work on packed batches as CUDA graphs and replay them, on a GPU"""
    compile: bool = False
    """compile Transformer blocks, on a GPU; takes a minute, which pays off in long runs"""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """of PyTorch on a CPU; None: PyTorch's own choice"""
    log_every: Count = 50
    """steps"""


class CardConfig(Section):
    """What the card of a model says about its origin; nothing else depends on it."""

    language: str | None = None
    """code of the language, such as en"""
    licence: str | None = None
    """of the model, as an SPDX identifier such as CC-BY-SA-4.0"""
    attribution: str | None = None
    """whose data it was trained on"""
    command: str | None = None
    """that trains it again"""


class InferenceConfig(Section):
    """The reverse process and the decoder."""

    base: Annotated[float, Field(gt=1, le=1e6)] = 2.0
    """of the reverse schedule: each call divides the noise step by this"""
    num_calls: Annotated[int, Field(ge=1, le=100_000)] | Literal["auto"] | None = None
    """used instead of a base; auto: training ends with the choice of the smallest number that is as good as any on dev, and the
    base is used until then"""
    decoder: Literal["argmax", "mask-viterbi", "viterbi", "native"] | None = None
    """None: the best one on dev"""
    budget: Count = 20000
    """units per batch, padding included; subwords, with a pretrained encoder"""
    posterior: Literal["product", "mixture", "sampled"] = "product"
    """categorical diffusion: how beliefs at s follow from beliefs at t (`diffusion.Reading`); works with any trained model"""
    scores_from: Literal["first", "last"] = "last"
    """the call whose marginals are reported as scores; those of later calls tend to be overconfident"""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """as in training"""
    layout: Literal["auto", "padded", "packed"] = "auto"
    """as in training"""

    def calls_and_base(self, num_calls: int | None = None) -> tuple[int | None, float | None]:
        """What determines the reverse schedule, a number of calls or a base: the argument or, without it, these settings."""
        if num_calls is None and self.num_calls != AUTO:
            num_calls = self.num_calls
        return (None, self.base) if num_calls is None else (num_calls, None)
