"""Which weights of a pretrained model are trained: all, the upper layers, none, or low-rank additions (LoRA)."""

from __future__ import annotations

from typing import Any

from torch import nn

from diffusion_mf.config import EncoderConfig
from diffusion_mf.errors import InputError


def layer_lists(model: nn.Module) -> list[nn.ModuleList]:
    """The model's stacks of layers, from the outside in: lists that do not lie in a longer one."""
    found: list[tuple[str, nn.ModuleList]] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and not any(name.startswith(f"{outer}.") for outer, _ in found):
            found.append((name, module))
    return [layers for _, layers in found]


def layers_of(model: nn.Module) -> nn.ModuleList | None:
    """The model's main stack of layers: the longest; None where it has none."""
    return max(layer_lists(model), key=len, default=None)


def choose_trainable(model: nn.Module, config: EncoderConfig) -> None:
    """Freeze what ``config`` says: embeddings, lower layers, or everything."""
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
            f"encoder.freeze_layers is {config.freeze_layers}, but the encoder has {num_layers} layers to freeze one by one",
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
    """Put low-rank additions beside linear layers, in place; they alone are trained."""
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
            f"encoder.lora_targets fit no layer ({' '.join(str(error).split())[:150]})",
            remedy="name linear layers of the encoder",
        ) from None


def _linear_layers(model: nn.Module) -> list[str]:
    return sorted({name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)})
