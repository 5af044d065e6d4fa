"""Download models from the Hugging Face hub, and upload them."""

from __future__ import annotations

from pathlib import Path

from diffusion_mf.errors import InputError
from diffusion_mf.model.storage import ENCODER, HUB_PREFIX, MODEL_FILES
from diffusion_mf.networks.pretrained.hugging_face import hub_answers, hub_silence, is_of_hub

_PATTERNS = (*MODEL_FILES, f"{ENCODER}/*")


def download(name: str, *, revision: str | None = None) -> str:
    """Download a model repository and return its local folder; only files that belong to a model are fetched.

    ``name`` is OWNER/NAME, with or without `HUB_PREFIX`.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    name = name.removeprefix(HUB_PREFIX)
    try:
        return snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(_PATTERNS),
            ignore_patterns=["*.py"],
            # What was downloaded before is there in any case.
            local_files_only=not hub_answers(name, revision),
        )
    except Exception as error:
        if not is_of_hub(error):
            raise
        # The library's message about a hub that does not answer is long and about its cache.
        is_silent = isinstance(error, LocalEntryNotFoundError)
        reason = hub_silence() if is_silent else _reason(error)
        raise InputError(
            f"neither a model folder nor available from the hub ({reason})",
            path=name,
            remedy="give a folder, or check the connection" if is_silent else "check the name",
        ) from None


def upload(folder: Path, name: str, *, private: bool, token: str | None, message: str) -> str:
    """Make the repository ``name`` hold exactly the files of the model ``folder``; returns its URL.

    Files of an older model are removed; others, such as licences, stay.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    try:
        api.create_repo(name, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=name, folder_path=folder, commit_message=message, delete_patterns=list(_PATTERNS)
        )
    except Exception as error:
        if not is_of_hub(error):
            raise
        raise InputError(
            f"the hub refused the model ({_reason(error)})", path=name, remedy="check the name, and hf auth login"
        ) from None
    return str(commit.commit_url)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
