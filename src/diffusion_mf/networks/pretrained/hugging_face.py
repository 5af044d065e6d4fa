"""Models and tokenizers from folders and from the Hugging Face hub; what is wrong with them is an `InputError`.

A folder never touches the network. Weights come from safetensors alone, and no code that comes with a model is run.
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
"""tokenizers that know of no limit give numbers above this"""

LEAST_SHARE = 0.75
"""of a model's embeddings that its tokenizer uses: a few at the end may be spare, so many are another model's"""

HUB_TIMEOUT = 5.0
"""seconds for the hub to answer"""

# Without a word about it, transformers asks at the terminal whether it may run what comes with a model.
_NO_CODE = {"trust_remote_code": False}


class Loaded(NamedTuple):
    """A model, its tokenizer, and how many subwords it takes at once (None: any number)."""

    model: nn.Module
    tokenizer: Any
    limit: int | None


def load_pretrained(config: EncoderConfig) -> Loaded:
    """The model that a configuration names, with its weights; on the meta device, without."""
    name = str(config.model)
    is_folder = os.path.isdir(name)
    if is_folder:
        _check_folder(Path(name))
    elif "$" in name:
        raise InputError(f"the encoder {name} names a variable that is not set", remedy="set it, or give the folder")
    elif name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise InputError("there is no such folder of an encoder", path=name, remedy="check encoder.model")
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
            f"{len(mismatched)} of the weights have other sizes than config.json says, such as {key}, which is "
            f"{tuple(found)}, not {tuple(expected)}",
            path=name,
            remedy="check that config.json belongs to model.safetensors",
        )
    if not is_folder:
        # Kept among the saved configuration's entries: a model card may name it.
        model.config.hub_name = name  # type: ignore[union-attr]
    loaded = _checked(model, tokenizer, name)
    _check_tokenizer(model, tokenizer, name)
    return loaded


def _fetched_before(name: str, revision: str | None) -> str | None:
    """The folder of a model in the hub's local cache; None if it is not there, or not whole."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", revision=revision)
    if not isinstance(found, str):
        return None
    folder = Path(found).parent
    is_whole = any(folder.glob("*.safetensors")) and any(folder.glob("*token*"))
    return str(folder) if is_whole else None


def hub_answers(name: str, revision: str | None) -> bool:
    """Whether the hub has anything to say about a model: one quick try, where others try many times or wait without end."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        HfApi().model_info(name, revision=revision, timeout=HUB_TIMEOUT)
    except (HfHubHTTPError, HFValidationError):
        return True  # fetching the model says what is wrong
    except Exception as error:
        if not is_of_hub(error):
            raise
        return False
    return True


HTTP_CLIENTS = {"httpx", "httpx2", "requests"}
"""what versions of huggingface_hub speak through; the errors of some are no OSError"""


def is_of_hub(error: Exception) -> bool:
    """Whether the hub, the way there or the name is to blame, not this program."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    return isinstance(error, (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError)) or any(
        kind.__module__.partition(".")[0] in HTTP_CLIENTS for kind in type(error).__mro__
    )


def hub_silence() -> str:
    """Why the hub did not answer, in brackets behind its name."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "which is not asked, as HF_HUB_OFFLINE is set"
    return f"which cannot be reached at {constants.ENDPOINT}"


def _not_found(name: str, reason: str) -> InputError:
    return InputError(
        f"the encoder {name} is neither a folder here nor to be had from the Hugging Face hub ({reason})",
        remedy=f"where the hub can be reached: hf download {name} --local-dir FOLDER, then set encoder.model to FOLDER",
    )


def _from_pretrained(transformers: Any, name: str, where: Mapping[str, Any]) -> tuple[nn.Module, Any, dict[str, Any]]:
    """Model, tokenizer, and what was missing from the weights."""
    where = {**where, **_NO_CODE}
    tokenizer = transformers.AutoTokenizer.from_pretrained(name, **where)
    if torch.get_default_device().type == "meta":
        config = transformers.AutoConfig.from_pretrained(name, **where)
        return transformers.AutoModel.from_config(config, **_NO_CODE), tokenizer, {}
    model, report = transformers.AutoModel.from_pretrained(
        name,
        use_safetensors=True,
        output_loading_info=True,
        # They are refused all the same, with their names.
        ignore_mismatched_sizes=True,
        **where,
    )
    return model, tokenizer, report


def load_architecture(folder: Path) -> Loaded:
    """The model of a folder that `write_architecture` filled, its weights yet to come."""
    transformers = _transformers()
    where = {"local_files_only": True, **_NO_CODE}
    with _quiet(transformers), _explained(str(folder), is_folder=True):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **where)
        config = transformers.AutoConfig.from_pretrained(folder, **where)
        model = transformers.AutoModel.from_config(config, **_NO_CODE)
    return _checked(model, tokenizer, str(folder))


def write_architecture(folder: Path, model: nn.Module, tokenizer: Any) -> None:
    """Put the model's configuration and the tokenizer's files into ``folder``."""
    check_utf8_name(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)  # type: ignore[operator, union-attr]
    tokenizer.save_pretrained(folder)


def check_utf8_name(folder: Path) -> None:
    """`InputError` for a name that transformers cannot write to."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise InputError(
            "its name is not UTF-8, as a pretrained encoder's files need it", path=folder, remedy="name another folder"
        ) from None


def subword_limit(model: nn.Module, tokenizer: Any) -> int | None:
    """How many subwords fit, special ones included: rows of the position table, or what model and tokenizer say."""
    limits = []
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # Models that pad inside the table count positions from the row after padding.
            limits.append(module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1))
    if not limits:
        stated = getattr(model.config, "max_position_embeddings", None)
        limits += [stated] if isinstance(stated, int) and stated > 0 else []
    stated = getattr(tokenizer, "model_max_length", None)
    limits += [int(stated)] if stated is not None and stated < NO_LIMIT else []
    return min(limits, default=None)


def _checked(model: nn.Module, tokenizer: Any, name: str) -> Loaded:
    if getattr(model.config, "is_encoder_decoder", False):
        raise InputError("the model has a decoder, too", path=name, remedy="choose an encoder such as BERT or RoBERTa")
    if "add_pooling_layer" in inspect.signature(type(model).__init__).parameters:
        # It summarises whole sentences: nothing here trains or reads it.
        model.pooler = None  # type: ignore[assignment]
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= embedding.num_embeddings:
        raise InputError(
            f"the tokenizer has ids up to {largest}, the model embeds {embedding.num_embeddings}",
            path=name,
            remedy="use the tokenizer the model was trained with",
        )
    return Loaded(model.float(), tokenizer, subword_limit(model, tokenizer))


def _check_tokenizer(model: nn.Module, tokenizer: Any, name: str) -> None:
    """Refuse what is surely the tokenizer of another model, or none: ids that fit the model may yet mean other words."""
    num_tokens = len(tokenizer.get_vocab())
    num_embeddings = model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    if num_tokens < LEAST_SHARE * num_embeddings:
        raise InputError(
            f"the tokenizer has {num_tokens} tokens, the model embeds {num_embeddings}: it is another model's, or its files "
            "are missing",
            path=name,
            remedy="use the tokenizer the model was trained with",
        )
    for module in (module for key, module in model.named_modules() if key.endswith("position_embeddings")):
        padding = getattr(module, "padding_idx", None)
        # Such models count positions by what is no padding.
        if padding is not None and tokenizer.pad_token_id is not None and padding != tokenizer.pad_token_id:
            raise InputError(
                f"the tokenizer pads with {tokenizer.pad_token_id}, the model with {padding}: it is another model's",
                path=name,
                remedy="use the tokenizer the model was trained with",
            )


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise InputError(
            "no folder of an encoder: it lacks config.json", path=folder, remedy="copy all files of the model into it"
        )
    if not any(folder.glob("*.safetensors")):
        others = [*folder.glob("*.bin"), *folder.glob("*.pt")]
        remedy = f"dmf convert-encoder {folder} NEW-FOLDER" if others else "copy all files of the model into it"
        raise InputError("the folder holds no weights as safetensors", path=folder, remedy=remedy)


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
    """No bars and reports on stderr: what matters is checked and said here."""
    messages = transformers.utils.logging
    verbosity, has_bars = messages.get_verbosity(), messages.is_progress_bar_enabled()
    # The hub's client tells of every attempt to reach it.
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
                "the model comes with code of its own, which is never run", path=name, remedy="choose another encoder"
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
            # What transformers says of a hub that does not answer is long and about its cache.
            reason = hub_silence()
        raise _not_found(name, reason) from error
