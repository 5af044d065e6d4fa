"""Load models and tokenizers from folders and from the Hugging Face hub; problems are reported as `InputError`.

Loading a folder never uses the network. Weights are read from safetensors only, and code that comes with a model is never run.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import nn

from diffusion_mf.config import EncoderConfig
from diffusion_mf.errors import DiffusionMFError, InputError

NO_LIMIT = 1_000_000
"""tokenizers without a limit report numbers above this"""

LEAST_SHARE = 0.75
"""share of a model's embeddings that its tokenizer uses at least; with less, it is the tokenizer of another model"""

HUB_TIMEOUT = 5.0
"""seconds to wait for the hub"""

# Unless this is set, transformers asks on the terminal whether it may run code that comes with a model.
_NO_CODE = {"trust_remote_code": False}


class Loaded(NamedTuple):
    """A model, its tokenizer, and the most subwords it can encode at once (None: no limit)."""

    model: nn.Module
    tokenizer: Any
    limit: int | None


def load_pretrained(config: EncoderConfig) -> Loaded:
    """The model that a configuration names, with its weights; without them on the meta device."""
    name = str(config.model)
    is_folder = os.path.isdir(name)
    if is_folder:
        _check_folder(Path(name))
    elif "$" in name:
        raise InputError(
            f"the encoder {name} contains a variable that is not set", remedy="set it, or give the path of the folder"
        )
    elif name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise InputError("no such encoder folder", path=name, remedy="check encoder.model")
    transformers = _transformers()
    with _quiet(transformers), _explained(name, is_folder):
        folder = name if is_folder else _fetched_before(name, config.revision)
        if folder is None:
            if not hub_answers(name, config.revision):
                raise _not_found(name, hub_silence())
            where = {} if config.revision is None else {"revision": config.revision}
            model, tokenizer, report = _from_pretrained(transformers, name, where)
        else:
            model, tokenizer, report = _from_pretrained(transformers, folder, {"local_files_only": True})
    missing = sorted(key for key in report.get("missing_keys", ()) if "pooler" not in key)
    if missing:
        raise InputError(
            f"the weights lack {len(missing)} of the model's tensors, such as {missing[0]}",
            path=name,
            remedy="check that config.json belongs to model.safetensors",
        )
    if mismatched := sorted(report.get("mismatched_keys", ())):
        key, found, expected = mismatched[0]
        raise InputError(
            f"{len(mismatched)} weights have other sizes than in config.json, for example {key}, which is "
            f"{tuple(found)}, not {tuple(expected)}",
            path=name,
            remedy="check that config.json belongs to model.safetensors",
        )
    if not is_folder:
        # Saved with the configuration, so that a model card can name it.
        model.config.hub_name = name  # type: ignore[union-attr]
    loaded = _checked(model, tokenizer, name)
    _check_tokenizer(model, tokenizer, name)
    return loaded


def _fetched_before(name: str, revision: str | None) -> str | None:
    """The folder of a model in the hub's local cache; None if it is missing or incomplete."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", revision=revision)
    if not isinstance(found, str):
        return None
    folder = Path(found).parent
    is_whole = any(folder.glob("*.safetensors")) and any(folder.glob("*token*"))
    return str(folder) if is_whole else None


def hub_answers(name: str, revision: str | None) -> bool:
    """Whether the hub answers for a model: one quick attempt, since its client retries many times or waits forever."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        HfApi().model_info(name, revision=revision, timeout=HUB_TIMEOUT)
    except (HfHubHTTPError, HFValidationError):
        return True  # fetching the model reports what is wrong
    except Exception as error:
        if not is_of_hub(error):
            raise
        return False
    return True


HTTP_CLIENTS = {"httpx", "httpx2", "requests"}
"""the exceptions of different versions of huggingface_hub; some are not OSError"""


def is_of_hub(error: Exception) -> bool:
    """Whether the hub, the connection or the name is at fault, not this program."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    return isinstance(error, (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError)) or any(
        kind.__module__.partition(".")[0] in HTTP_CLIENTS for kind in type(error).__mro__
    )


def hub_silence() -> str:
    """Why the hub did not answer, to be put in brackets."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "which was not contacted because HF_HUB_OFFLINE is set"
    return f"which cannot be reached at {constants.ENDPOINT}"


def _not_found(name: str, reason: str) -> InputError:
    return InputError(
        f"the encoder {name} is neither a folder here nor available from the Hugging Face hub ({reason})",
        remedy=f"on a machine with access: hf download {name} --local-dir FOLDER, then set encoder.model to FOLDER",
    )


def _from_pretrained(transformers: Any, name: str, where: Mapping[str, Any]) -> tuple[nn.Module, Any, dict[str, Any]]:
    """The model, the tokenizer, and the weights that were missing."""
    where = {**where, **_NO_CODE}
    tokenizer = transformers.AutoTokenizer.from_pretrained(name, **where)
    if torch.get_default_device().type == "meta":
        config = transformers.AutoConfig.from_pretrained(name, **where)
        return transformers.AutoModel.from_config(config, **_NO_CODE), tokenizer, {}
    model, report = transformers.AutoModel.from_pretrained(
        name,
        use_safetensors=True,
        output_loading_info=True,
        # Mismatched weights are refused below, by name.
        ignore_mismatched_sizes=True,
        **where,
    )
    return model, tokenizer, report


def load_architecture(folder: Path) -> Loaded:
    """The model of a folder that `write_architecture` wrote, without its weights."""
    transformers = _transformers()
    where = {"local_files_only": True, **_NO_CODE}
    with _quiet(transformers), _explained(str(folder), is_folder=True):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **where)
        config = transformers.AutoConfig.from_pretrained(folder, **where)
        model = transformers.AutoModel.from_config(config, **_NO_CODE)
    return _checked(model, tokenizer, str(folder))


def write_architecture(folder: Path, model: nn.Module, tokenizer: Any) -> None:
    """Write the model's configuration and the tokenizer's files to ``folder``."""
    check_utf8_name(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)  # type: ignore[operator, union-attr]
    tokenizer.save_pretrained(folder)


def check_utf8_name(folder: Path) -> None:
    """`InputError` for a path that transformers cannot write to."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise InputError(
            "the folder's name is not UTF-8, which pretrained encoders need",
            path=folder,
            remedy="rename it, or choose another folder",
        ) from None


def subword_limit(model: nn.Module, tokenizer: Any) -> int | None:
    """The most subwords per sequence, special tokens included: from the position table, or from model and tokenizer."""
    limits = []
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # Models with a padding row in the table count positions from the row after it.
            limits.append(module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1))
    if not limits:
        stated = getattr(model.config, "max_position_embeddings", None)
        limits += [stated] if isinstance(stated, int) and stated > 0 else []
    stated = getattr(tokenizer, "model_max_length", None)
    limits += [int(stated)] if stated is not None and stated < NO_LIMIT else []
    return min(limits, default=None)


def _checked(model: nn.Module, tokenizer: Any, name: str) -> Loaded:
    if getattr(model.config, "is_encoder_decoder", False):
        raise InputError("the model also has a decoder", path=name, remedy="choose an encoder such as BERT or RoBERTa")
    if "add_pooling_layer" in inspect.signature(type(model).__init__).parameters:
        # The pooler summarises whole sentences; it is neither trained nor read here.
        model.pooler = None  # type: ignore[assignment]
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= embedding.num_embeddings:
        raise InputError(
            f"the tokenizer has ids up to {largest}, but the model has {embedding.num_embeddings} embeddings",
            path=name,
            remedy="use the tokenizer the model was trained with",
        )
    return Loaded(model.float(), tokenizer, subword_limit(model, tokenizer))


def _check_tokenizer(model: nn.Module, tokenizer: Any, name: str) -> None:
    """Refuse a tokenizer that clearly belongs to another model: its ids may be valid and still mean other words."""
    num_tokens = len(tokenizer.get_vocab())
    num_embeddings = model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    if num_tokens < LEAST_SHARE * num_embeddings:
        raise InputError(
            f"the tokenizer has {num_tokens} tokens, but the model {num_embeddings} embeddings: it is another model's, or files "
            "are missing",
            path=name,
            remedy="use the tokenizer the model was trained with",
        )
    for module in (module for key, module in model.named_modules() if key.endswith("position_embeddings")):
        padding = getattr(module, "padding_idx", None)
        # Such models count positions over non-padding subwords.
        if padding is not None and tokenizer.pad_token_id is not None and padding != tokenizer.pad_token_id:
            raise InputError(
                f"the tokenizer pads with {tokenizer.pad_token_id}, the model with {padding}: they do not belong together",
                path=name,
                remedy="use the tokenizer the model was trained with",
            )


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise InputError(
            "not the folder of an encoder: config.json is missing",
            path=folder,
            remedy="copy all files of the model into it",
        )
    if not any(folder.glob("*.safetensors")):
        others = [*folder.glob("*.bin"), *folder.glob("*.pt")]
        remedy = f"dmf convert-encoder {folder} NEW-FOLDER" if others else "copy all files of the model into it"
        raise InputError("the folder has no safetensors weights", path=folder, remedy=remedy)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise InputError(
            "pretrained encoders need the transformers package", remedy="pip install 'diffusion-mf[pretrained]'"
        ) from None
    return transformers


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No progress bars and reports on stderr: what matters is checked and reported here."""
    messages = transformers.utils.logging
    verbosity, has_bars = messages.get_verbosity(), messages.is_progress_bar_enabled()
    # The hub's client reports every attempt to reach it.
    client = logging.getLogger("huggingface_hub")
    client_level = client.level
    messages.set_verbosity_error()
    messages.disable_progress_bar()
    client.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        messages.set_verbosity(verbosity)
        client.setLevel(client_level)
        if has_bars:
            messages.enable_progress_bar()


@contextlib.contextmanager
def _explained(name: str, is_folder: bool) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:150]
        if "trust_remote_code" in str(error):
            raise InputError(
                "the model comes with its own code, which is never run", path=name, remedy="choose another encoder"
            ) from error
        if "allocate memory" in str(error):
            raise DiffusionMFError(
                f"{name}: there is not enough memory to load the encoder; choose a smaller one."
            ) from error
        if is_folder:
            raise InputError(
                f"the encoder cannot be loaded ({reason})", path=name, remedy="copy all its files again"
            ) from error
        if "couldn't connect" in reason:
            # The message of transformers about a hub that does not answer is long and about its cache.
            reason = hub_silence()
        raise _not_found(name, reason) from error
