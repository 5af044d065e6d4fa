"""A model on disk: a folder of JSON and safetensors, nothing that could run code.

| file | holds |
|---|---|
| config.json | format version, the training configuration, label schemes, decoders, temperature, checksums of the others |
| vocabulary.json | forms and characters with their counts, labels; pairs of neighbouring forms, if the encoder looks at them |
| model.safetensors | the weights |
| metrics.json | what was measured when the model was made; may be missing |
| README.md | the model card |
| encoder/ | of a pretrained encoder: its configuration and tokenizer, so that nothing else is needed to load it |

A folder appears whole, by rename, or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from diffusion_mf import __version__
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.data.files import StrPath, current_umask
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.decoding import DECODERS, OutputLabels
from diffusion_mf.errors import InputError
from diffusion_mf.model.card import model_card
from diffusion_mf.networks.tensor_files import write_tensors
from diffusion_mf.ops.backends import Backend

if TYPE_CHECKING:
    from diffusion_mf.config import Config
    from diffusion_mf.model import Labeller


FORMAT = "diffusion-mf model"
FORMAT_VERSION = 1
"""Raised whenever an older reader could not make sense of a folder; readers say which version a newer one needs."""

CONFIG, VOCABULARY, WEIGHTS, METRICS, CARD = (
    "config.json",
    "vocabulary.json",
    "model.safetensors",
    "metrics.json",
    "README.md",
)
MODEL_FILES = (CONFIG, VOCABULARY, WEIGHTS, METRICS, CARD)
ENCODER = "encoder"
"""the folder of an encoder's own files"""
_CHECKED_FILES = (VOCABULARY, WEIGHTS)


class StoredModel(NamedTuple):
    """Everything a model folder holds."""

    labeller: Labeller
    config: Config
    vocabulary: Vocabulary
    scheme: LabelScheme
    """the one that the model works in"""
    decoder: str
    """the one that was best on the development data"""
    temperature: float
    """what the logarithms of marginals are divided by before they are reported as scores"""
    metrics: Mapping[str, Any]
    source_scheme: LabelScheme | None = None
    """that of the training data; None for models of earlier versions"""
    legal_decoder: str | None = None
    """the best of those whose output is always legal, or what the configuration names; None for models of earlier versions"""

    @property
    def output_scheme(self) -> LabelScheme:
        """The scheme that users read: that of the training data, where it is known."""
        return self.source_scheme or self.scheme

    @property
    def tagging_decoder(self) -> str:
        """The decoder for those who want labels: the best one whose output is always legal."""
        return self.legal_decoder or legal_decoder(self.config, self.scheme, self.decoder)


def legal_decoder(config: Config, scheme: LabelScheme, decoder: str) -> str:
    """``decoder`` if its output is always legal, nothing is illegal, or ``config`` names it; else the system's whose output is."""
    if scheme is LabelScheme.PLAIN or DECODERS[decoder].is_always_legal or config.inference.decoder == decoder:
        return decoder
    names = config.system_entry.decoders(is_constrained=True, projection=config.bits.projection)
    return next((name for name in reversed(names) if DECODERS[name].is_always_legal), decoder)


def save_model(
    folder: StrPath,
    labeller: Labeller,
    config: Config,
    vocabulary: Vocabulary,
    scheme: LabelScheme,
    decoder: str,
    temperature: float,
    metrics: Mapping[str, Any],
    source_scheme: LabelScheme | None = None,
    legal_decoder: str | None = None,
) -> None:
    """Write a model folder; an older model in its place makes way, anything else is left alone and an `InputError`."""
    model = StoredModel(
        labeller, config, vocabulary, scheme, decoder, temperature, metrics, source_scheme, legal_decoder
    )
    for name in (decoder, legal_decoder):
        if name is not None and name not in DECODERS:
            raise ValueError(f"no decoder is called {name!r}")
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"a temperature is a positive number, found {temperature}")
    # Weights that share memory are stored apart: safetensors knows no sharing.
    weights = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in labeller.state_dict().items()}
    with _new_folder(folder) as written:
        write_tensors(written / WEIGHTS, weights, metadata={"format": "pt"})
        _write_json(written / VOCABULARY, vocabulary.to_dict())
        _write_json(written / METRICS, dict(metrics))
        labeller.encoder.write_files(written / ENCODER)
        description = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "written_by": __version__,
            "scheme": str(scheme),
            **({} if source_scheme is None else {"source_scheme": str(source_scheme)}),
            "decoder": decoder,
            **({} if legal_decoder is None else {"legal_decoder": legal_decoder}),
            "temperature": temperature,
            "checksums": {name: _checksum(written / name) for name in (*_CHECKED_FILES, *_encoder_files(written))},
            "config": config.model_dump(mode="json"),
        }
        _write_json(written / CONFIG, description)
        card = model_card(
            config,
            base_model=labeller.encoder.hub_name,
            labels=OutputLabels(vocabulary.labels, scheme, model.output_scheme).names,
            scheme=model.output_scheme,
            num_parameters=sum(tensor.numel() for tensor in weights.values()),
            decoder=decoder,
            tagging_decoder=model.tagging_decoder,
            temperature=temperature,
            metrics=metrics,
        )
        (written / CARD).write_text(card, encoding="utf-8")


def load_model(folder: StrPath, *, backend: Backend = "auto") -> StoredModel:
    """Read a model folder; whatever is wrong with it is an `InputError`. The labeller is on the CPU, set to evaluation.

    ``backend`` says how its structure is computed (`ops.backends`).
    """
    path = Path(folder)
    _check_files(path)
    description = _read_object(path / CONFIG)
    _check_format(path, description)
    checksums = _entry(path, description, "checksums", dict)
    for name in {*_CHECKED_FILES, *(name for name in checksums if _is_encoder_file(name))}:
        if _checksum(path / name) != checksums.get(name):
            raise InputError("damaged or changed since it was saved", path=path / name, remedy="copy the model again")
    config, scheme, decoder, temperature, source_scheme, legal = _settings(path, description)
    try:
        vocabulary = Vocabulary.from_dict(_read_object(path / VOCABULARY))
    except (KeyError, TypeError, ValueError):
        raise InputError("no vocabulary", path=path / VOCABULARY, remedy="copy the model again") from None
    return StoredModel(
        labeller=_load_labeller(path / WEIGHTS, config, vocabulary, scheme, backend),
        config=config,
        vocabulary=vocabulary,
        scheme=scheme,
        decoder=decoder,
        temperature=temperature,
        metrics=read_metrics(path),
        source_scheme=source_scheme,
        legal_decoder=legal,
    )


def pack_folder(folder: Path) -> bytes:
    """The files of a model folder as a ZIP archive without compression: weights hardly shrink, and equal folders give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.writestr(zipfile.ZipInfo(path.relative_to(folder).as_posix()), path.read_bytes())
    return buffer.getvalue()


def unpack_folder(data: bytes, folder: Path) -> None:
    """Write the files of `pack_folder` to a new folder; what is no such archive is an `InputError`."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                if name not in MODEL_FILES and not _is_encoder_file(name):
                    raise InputError(
                        f"the bytes of a model hold {name!r}, which is no file of one", remedy="save it again"
                    )
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(archive.read(name))
    except (zipfile.BadZipFile, EOFError):
        raise InputError("these bytes are no model", remedy="give what Tagger.to_bytes returned") from None


def read_config(folder: StrPath) -> Config:
    """The configuration that a model was trained with."""
    path = Path(folder)
    _check_files(path)
    description = _read_object(path / CONFIG)
    _check_format(path, description)
    return _settings(path, description)[0]


def read_metrics(folder: StrPath) -> dict[str, Any]:
    """What was measured when the model was made; nothing if that file was not kept, for a model works without."""
    path = Path(folder) / METRICS
    return _read_object(path) if path.exists() else {}


def _load_labeller(
    path: Path, config: Config, vocabulary: Vocabulary, scheme: LabelScheme, backend: Backend
) -> Labeller:
    from diffusion_mf.model import Labeller

    # The first weights of a network are drawn at random; whoever loads a model must not notice.
    with torch.random.fork_rng(devices=[]):
        labeller = Labeller(config, vocabulary, scheme, encoder_files=path.parent / ENCODER, backend=backend)
    try:
        labeller.load_state_dict(load_file(path))
    except (SafetensorError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the weights do not fit the model ({reason})", path=path, remedy="train it again") from None
    labeller.requires_grad_(False)
    return labeller.eval()


def _check_files(path: Path) -> None:
    if not path.exists():
        raise InputError("no such model folder", path=path, remedy="check the path")
    if not path.is_dir():
        raise InputError("this is a file, not a model folder", path=path, remedy="name the folder that holds it")
    missing = [name for name in (CONFIG, VOCABULARY, WEIGHTS) if not (path / name).is_file()]
    if missing:
        inside = path / "model"
        hint = f"name {inside}" if (inside / CONFIG).is_file() else "name a folder that dmf train wrote"
        raise InputError(f"no model folder: it lacks {', '.join(missing)}", path=path, remedy=hint)


def _check_format(path: Path, description: Mapping[str, Any]) -> None:
    if description.get("format") != FORMAT:
        raise InputError("not a model of this program", path=path / CONFIG, remedy="name a folder that dmf train wrote")
    version = _entry(path, description, "format_version", int)
    if version > FORMAT_VERSION:
        raise InputError(
            f"the model has format version {version} (written by diffusion-mf {description.get('written_by')}), but "
            f"diffusion-mf {__version__} reads versions up to {FORMAT_VERSION}",
            path=path,
            remedy="upgrade diffusion-mf",
        )
    if version < 1:
        raise InputError(f"there is no format version {version}", path=path / CONFIG, remedy="copy the model again")


def _settings(
    path: Path, description: Mapping[str, Any]
) -> tuple[Config, LabelScheme, str, float, LabelScheme | None, str | None]:
    from diffusion_mf.config import saved_config

    config = saved_config(_entry(path, description, "config", dict), path=path / CONFIG, is_trained=True)
    scheme = _entry(path, description, "scheme", str)
    decoder = _entry(path, description, "decoder", str)
    temperature = float(_entry(path, description, "temperature", (int, float)))
    # Earlier versions did not write these two.
    source_scheme, legal = (
        _entry(path, description, key, str) if key in description else None
        for key in ("source_scheme", "legal_decoder")
    )
    has_schemes = {scheme, source_scheme or scheme} <= {*LabelScheme}
    if not has_schemes or not {decoder, legal or decoder} <= DECODERS.keys() or not (0 < temperature < math.inf):
        raise InputError(
            f"the scheme {scheme}, the decoder {decoder} or the temperature {temperature} is not possible",
            path=path / CONFIG,
            remedy="copy the model again",
        )
    source = None if source_scheme is None else LabelScheme(source_scheme)
    return config, LabelScheme(scheme), decoder, temperature, source, legal


def _entry(path: Path, description: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
    value = description.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"no usable {key!r}", path=path / CONFIG, remedy="copy the model again")
    return value


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InputError("damaged: no JSON object", path=path, remedy="copy the model again")
    return value


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _checksum(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path, remedy="check its permissions") from None


def _encoder_files(folder: Path) -> list[str]:
    return sorted(f"{ENCODER}/{file.name}" for file in (folder / ENCODER).glob("*"))


def _is_encoder_file(name: object) -> bool:
    return isinstance(name, str) and name.startswith(f"{ENCODER}/") and name.count("/") == 1 and ".." not in name


@contextlib.contextmanager
def _new_folder(folder: StrPath) -> Iterator[Path]:
    """An empty folder to fill, which takes the name ``folder`` when the block ends well and vanishes otherwise."""
    final = Path(os.path.realpath(folder))
    if final.exists() and not final.is_dir():
        raise InputError("this is a file", path=folder, remedy="name a folder to write the model to")
    if final.is_dir() and not set(os.listdir(final)) <= {*MODEL_FILES, ENCODER}:
        raise InputError("this folder holds other files", path=folder, remedy="name a new folder for the model")
    temporary: Path | None = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}.", suffix=".tmp"))
        # mkdtemp makes folders that nobody else may read.
        temporary.chmod(0o777 & ~current_umask())
        written = temporary / "new"
        written.mkdir()
        yield written
        if final.exists():
            # The older model is gone only after the new one is in its place.
            final.rename(temporary / "old")
        written.rename(final)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(
            f"the model cannot be written ({reason})", path=folder, remedy="check the free space and permissions"
        ) from error
    finally:
        if temporary is not None:
            if (temporary / "old").exists() and not final.exists():
                (temporary / "old").rename(final)
            shutil.rmtree(temporary, ignore_errors=True)
