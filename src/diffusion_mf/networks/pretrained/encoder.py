"""`PretrainedEncoder`: from subwords to states of units, with a learned mixture of layers and partial freezing.

The mixture of layers (Peters et al., 2018) is useful because a task may need information from below the last layer: in encoders tuned
to distinguish sentences, for example, the last layer holds little about single words.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from diffusion_mf.batches.batching import Batch, EncoderInput, PrepareInput
from diffusion_mf.batches.layouts import Layout
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import EncoderConfig
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.networks.pretrained.hugging_face import (
    Loaded,
    check_utf8_name,
    load_architecture,
    load_pretrained,
    write_architecture,
)
from diffusion_mf.networks.pretrained.state_cache import CachedStates, StateCache, digest_of
from diffusion_mf.networks.pretrained.subwords import OnLong, SubwordBatch, SubwordIds, SubwordPreparer, WindowSettings
from diffusion_mf.networks.words import Encoder

PACE = 10.0
"""factor from the encoder's learning rate, which is small, to that of the mixture weights"""


class LayerMixture(nn.Module):
    """Σ_l softmax(w)_l · norm(h_l) over the last ``num_layers`` layers, or all of them and the embeddings (0); initially equal.

    Layers are normalised, so that none dominates by its magnitude alone.
    """

    def __init__(self, num_layers: int, *, num_available: int) -> None:
        super().__init__()
        if num_layers > num_available:
            raise InputError(
                f"encoder.mix_layers is {num_layers}, but there are only {num_available} layers, embeddings included",
                remedy="set it lower; 0 uses all of them",
            )
        self.weights = nn.Parameter(torch.zeros(num_layers or num_available))

    def forward(self, layers: Sequence[Float[Tensor, "W S D"]]) -> Float[Tensor, "W S D"]:
        """The mixture of the last of ``layers``."""
        shares = (PACE * self.weights.float()).softmax(0)
        chosen = layers[-len(shares) :]
        return torch.stack(
            [share * F.layer_norm(layer.float(), layer.shape[-1:]) for share, layer in zip(shares, chosen, strict=True)]
        ).sum(0)


def layers_of(model: nn.Module) -> nn.ModuleList | None:
    """The model's main stack of layers: the longest of those that are not inside another one; None if there is none."""
    found: dict[str, nn.ModuleList] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and not any(name.startswith(f"{outer}.") for outer in found):
            found[name] = module
    return max(found.values(), key=len, default=None)


def choose_trainable(model: nn.Module, config: EncoderConfig) -> None:
    """Freeze what ``config`` selects: embeddings, lower layers, or everything."""
    if config.freeze == "all" or config.lora_rank:
        model.requires_grad_(False)
        return
    layers = layers_of(model)
    num_layers = 0 if layers is None else len(layers)
    if config.freeze_layers and num_layers < getattr(model.config, "num_hidden_layers", 0):
        raise InputError(
            f"encoder.freeze_layers is {config.freeze_layers}, but the layers of this encoder share their weights",
            remedy='set it to 0, or freeze = "all"',
        )
    if config.freeze_layers > num_layers:
        raise InputError(
            f"encoder.freeze_layers is {config.freeze_layers}, but only {num_layers} layers of the encoder can be frozen",
            remedy='set it lower, or freeze = "all"',
        )
    if config.freeze == "embeddings" or config.freeze_layers:
        for name, module in model.named_children():
            if "embed" in name:
                module.requires_grad_(False)
    if layers is not None:
        for layer in layers[: config.freeze_layers]:
            layer.requires_grad_(False)


def add_adapters(model: nn.Module, config: EncoderConfig) -> None:
    """Add low-rank adapters to linear layers, in place; only the adapters are trained."""
    try:
        import peft
    except ImportError:
        raise InputError("LoRA needs the peft package", remedy="pip install 'diffusion-mf[lora]'") from None
    targets: Any = list(config.lora_targets) or _linear_layers(model)
    settings = peft.LoraConfig(
        r=config.lora_rank, lora_alpha=config.lora_alpha, lora_dropout=config.lora_dropout, target_modules=targets
    )
    try:
        peft.inject_adapter_in_model(settings, model)
    except ValueError as error:
        raise InputError(
            f"encoder.lora_targets match no layer ({' '.join(str(error).split())[:150]})",
            remedy="give names of linear layers of the encoder",
        ) from None


def _linear_layers(model: nn.Module) -> list[str]:
    return sorted({name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)})


MISSING_DEVIATION = 0.02
"""initial standard deviation of the state of units without subwords: as for embeddings in BERT"""


class PretrainedEncoder(Encoder):
    """States of a pretrained Transformer's last layer or a mixture of layers, first-subword or mean pooled (paper: appendix A.3).

    Units that the model does not see (truncated ones, and those without subwords under a tokenizer without an unknown
    token) share one learned state.
    """

    def __init__(self, config: EncoderConfig, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._build(config, load_pretrained(config))
        self._is_unsaid = not _sees_right_context(self.model)

    @classmethod
    def from_files(cls, config: EncoderConfig, folder: Path) -> PretrainedEncoder:
        """The encoder whose files `write_files` wrote; its weights are loaded afterwards."""
        encoder = cls.__new__(cls)
        Encoder.__init__(encoder)
        # A loaded model is used, not trained: it sees new sentences, for which a cache is of no use.
        encoder._build(config.model_copy(update={"cache": None}), load_architecture(folder))
        return encoder

    def _build(self, config: EncoderConfig, loaded: Loaded) -> None:
        self.config = config
        self.model = loaded.model
        self.width = int(self.model.config.hidden_size)  # type: ignore[union-attr, arg-type]
        self.preparer = SubwordPreparer(SubwordIds(loaded.tokenizer), _window_settings(config, loaded.limit))
        if config.gradient_checkpointing:
            # Otherwise transformers warns on stderr.
            self.model.config.use_cache = False  # type: ignore[union-attr]
            self.model.gradient_checkpointing_enable(  # type: ignore[operator]
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
        self.cache = None if config.cache is None else StateCache(Path(config.cache))
        choose_trainable(self.model, config)
        if config.lora_rank:
            add_adapters(self.model, config)
        self.mixture: LayerMixture | None = None
        if config.mix_layers != 1:
            num_available = int(self.model.config.num_hidden_layers) + 1  # type: ignore[union-attr, arg-type]
            self.mixture = LayerMixture(config.mix_layers, num_available=num_available)
            # Cached states must not change: they are the plain mean of the layers.
            self.mixture.requires_grad_(self.cache is None)
        self.missing_state = nn.Parameter(torch.empty(self.width).normal_(std=MISSING_DEVIATION))
        self.dropout = nn.Dropout(config.dropout)
        self._is_unsaid = False
        """whether the model is a decoder"""

    @property
    def prepare_input(self) -> PrepareInput:
        """Builds subword tensors, or takes states from the cache."""
        return self.preparer if self.cache is None else self._from_cache

    def _from_cache(self, sentences: Sequence[Sentence]) -> EncoderInput:
        cached = None if self.cache is None else self.cache.of_batch(sentences)
        return self.preparer(sentences) if cached is None else cached

    @property
    def is_frozen(self) -> bool:
        """Whether all weights of the model itself are frozen."""
        return self.config.freeze == "all" and not self.config.lora_rank

    def set_on_long(self, on_long: OnLong) -> None:
        """Override how sentences that are too long are treated."""
        self.preparer.set_on_long(on_long)

    def train(self, mode: bool = True) -> PretrainedEncoder:
        """A frozen model has no dropout: its states are the same in training and afterwards."""
        super().train(mode)
        if self.is_frozen:
            self.model.eval()
        return self

    def forward(self, batch: Batch, layout: Layout | None = None) -> Float[Tensor, "*units D"]:
        """The states of a batch, (B, N, D), or packed by ``layout``."""
        given = batch.encoder_input
        if isinstance(given, SubwordBatch):
            given = self._encode(given)
        if not isinstance(given, CachedStates):
            raise ValueError("the batch has no subwords: collate it with this encoder's prepare_input")
        states = self.dropout(torch.where(given.has_state[..., None], given.states, self.missing_state))
        # A packed batch has more rows and positions than its sentences need.
        rows, columns = (wanted - found for wanted, found in zip(batch.form_ids.shape, states.shape, strict=False))
        if rows or columns:
            states = F.pad(states, (0, 0, 0, columns, 0, rows))
        return states if layout is None else layout.pack(states)

    def _encode(self, subwords: SubwordBatch) -> CachedStates:
        with torch.no_grad() if self.is_frozen else contextlib.nullcontext():
            output = self.model(
                input_ids=subwords.ids,
                attention_mask=subwords.is_subword.long(),
                output_hidden_states=self.mixture is not None,
            )
        states = output.last_hidden_state if self.mixture is None else self.mixture(output.hidden_states)
        return CachedStates(states=subwords.pool(states), has_state=subwords.has_state)

    def study(self, sentences: Iterable[Sentence], *, note: Callable[[str], None]) -> None:
        """Tokenize the sentences of a run once, and report how many are too long or unknown to the tokenizer."""
        sentences = list(sentences)
        counts = self.preparer.study(sentences)
        if counts.num_long:
            note(
                f"{counts.num_long:,} of {counts.num_sentences:,} sentences are longer than the encoder's limit and "
                + (
                    "are truncated"
                    if self.preparer.settings.on_long == "truncate"
                    else "are encoded in overlapping windows"
                )
            )
        if counts.num_unknown > counts.num_units // 10:
            note(
                f"the tokenizer does not fit these data: {counts.num_unknown:,} subwords of {counts.num_units:,} units are "
                "unknown to it; is it meant for another language, or uncased (set data.lowercase = true)?"
            )
        if self._is_unsaid:
            self._is_unsaid = False
            note(
                "this model is a decoder: the state of a word does not depend on the words after it, which costs accuracy; use "
                "an encoder such as BERT, which sees both sides"
            )
        if self.cache is not None and sentences:
            self._fill_cache(self.cache, sentences, note)

    @torch.no_grad()
    def _fill_cache(self, cache: StateCache, sentences: Sequence[Sentence], note: Callable[[str], None]) -> None:
        device = self.missing_state.device
        digest = digest_of(
            type(self.model).__name__,
            dataclasses.asdict(self.preparer.settings),
            (self.config.mix_layers, device.type),
            self.preparer.study_digest(sentences),
            weights=self.model.state_dict(),
        )
        if cache.add(sentences, lambda batch: self._encode(self.preparer(batch).to(device)), digest=digest):
            note(f"the states of {len(sentences):,} sentences were computed and cached in {self.config.cache}")

    def sizes(self, sentences: Sequence[Sentence]) -> list[int]:
        """Subwords, special tokens included: counted by units, a batch with a URL in it would be mostly padding."""
        return self.preparer.sizes(sentences)

    def check_folder(self, folder: Path) -> None:
        """transformers can only write to paths in UTF-8."""
        check_utf8_name(folder)

    def input_digest(self, sentences: Iterable[Sentence]) -> str:
        """A digest of the subwords: another tokenizer gives other subwords."""
        return self.preparer.study_digest(sentences)

    @property
    def hub_name(self) -> str | None:
        """As stored in the model's configuration; None for a folder."""
        return getattr(self.model.config, "hub_name", None)

    def write_files(self, folder: Path) -> None:
        """The model's configuration and the tokenizer."""
        write_architecture(folder, self.model, self.preparer.subword_ids.tokenizer)


@torch.no_grad()
def _sees_right_context(model: nn.Module) -> bool:
    """Whether the first state changes with the last subword; without weights (meta device) this is not known."""
    ids = torch.tensor([[0, 1, 2], [0, 1, 3]])
    if ids.is_meta:
        return True
    was_training = model.training
    states = model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    model.train(was_training)
    return not torch.equal(states[0, 0], states[1, 0])


def _window_settings(config: EncoderConfig, limit: int | None) -> WindowSettings:
    if limit is not None and config.max_subwords is not None and config.max_subwords > limit:
        raise InputError(
            f"encoder.max_subwords is {config.max_subwords}, but the encoder's limit is {limit}", remedy="set it lower"
        )
    return WindowSettings(
        pooling=config.pooling,
        on_long=config.on_long,
        truncate_units=config.truncate_units,
        max_subwords=config.max_subwords or limit,
        stride=config.stride,
    )
