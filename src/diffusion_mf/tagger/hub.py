"""Models from the Hugging Face hub."""

from __future__ import annotations

from diffusion_mf.errors import InputError
from diffusion_mf.tagger.storage import ENCODER, MODEL_FILES


def download(name: str, *, revision: str | None = None) -> str:
    """The local folder of a model repository; only the files of a model are fetched."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return snapshot_download(name, revision=revision, allow_patterns=[*MODEL_FILES, f"{ENCODER}/*"])
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"neither a model folder nor to be had from the hub ({reason})", path=name, remedy="check the name"
        ) from None
