"""A model on disk: a folder of JSON and safetensors files, without anything that could run code.

| file | holds |
|---|---|
| manifest.json | size and SHA-256 checksum of every file that is loaded; folders of earlier versions have none |
| config.json | format version, the training configuration, label schemes, decoders, temperature, checksums of the other files |
| vocabulary.json | forms and characters with their counts, labels; pairs of neighbouring forms, if the encoder uses them |
| model.safetensors | the weights |
| metrics.json | what was measured when the model was made; may be missing |
| README.md | the model card |
| encoder/ | of a pretrained encoder: its configuration and tokenizer, so that nothing else is needed to load it |

A folder is written completely, by a rename, or not at all. It is read once, into memory: what was verified is what is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import struct
import tempfile
import time
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from diffusion_mf import __version__
from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.data.files import StrPath, is_temporary, open_regular, refuse_constant, temporary_name, try_lock
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.decoding import DECODERS, OutputLabels
from diffusion_mf.errors import InputError, quoted
from diffusion_mf.model.card import model_card
from diffusion_mf.networks.denoisers import ADDED_LATER
from diffusion_mf.networks.tensor_files import write_tensors

if TYPE_CHECKING:
    from diffusion_mf.config import Config
    from diffusion_mf.model import Labeller


FORMAT = "diffusion-mf model"
FORMAT_VERSION = 2
"""Increased whenever older versions could not read a folder; they then report which version is needed."""

MANIFEST, CONFIG, VOCABULARY, WEIGHTS, METRICS, CARD = (
    "manifest.json",
    "config.json",
    "vocabulary.json",
    "model.safetensors",
    "metrics.json",
    "README.md",
)
MODEL_FILES = (MANIFEST, CONFIG, VOCABULARY, WEIGHTS, METRICS, CARD)
ENCODER = "encoder"
"""the folder of an encoder's own files"""
HUB_PREFIX = "hf:"
"""before the name of a model on the Hugging Face hub"""
_CHECKED_FILES = (VOCABULARY, WEIGHTS)

MOST_BYTES = {MANIFEST: 1 << 20, CONFIG: 1 << 24, METRICS: 1 << 26, VOCABULARY: 1 << 30, WEIGHTS: 1 << 34}
"""sizes beyond which files are not read"""
MOST_ENCODER_BYTES = 1 << 28
"""the same for each file of an encoder"""

LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 100.0
"""of scores: ten times as wide as calibration chooses from; beyond, scores would be 0, 1 or not finite"""
MOST_CALIBRATION = 1000
"""of the confidence of spans, for the same reason"""

_COPY_AGAIN = "copy the model again"
SECONDS_TO_WAIT = 2.0
"""for a model that is being saved while it is loaded"""


class StoredModel(NamedTuple):
    """The contents of a model folder."""

    labeller: Labeller
    config: Config
    vocabulary: Vocabulary
    scheme: LabelScheme
    """the one that the model works in"""
    decoder: str
    """the one that was best on the development data"""
    temperature: float
    """divides the logarithms of marginals before they are reported as scores"""
    metrics: Mapping[str, Any]
    source_scheme: LabelScheme | None = None
    """that of the training data; None for models of earlier versions"""
    legal_decoder: str | None = None
    """the best of those whose output is always legal, or what the configuration names; None for models of earlier versions"""
    chosen_calls: int | None = None
    """the number of denoiser calls that was chosen on dev, which ``config`` has, too; None if the configuration decided"""
    source_columns: tuple[int, int] | None = None
    """those of form and tag, from 1, in the training file, if it is a column file with others, too"""
    span_calibration: tuple[float, float] = (1.0, 0.0)
    """slope and offset of `data.label_schemes.SpanCalibration`"""

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


def save_model(folder: StrPath, model: StoredModel) -> None:
    """Write a model folder, replacing an older model in its place; any other folder is an `InputError` and left unchanged."""
    config = model.config.with_calls(model.chosen_calls)
    for name in (model.decoder, model.legal_decoder):
        if name is not None and name not in DECODERS:
            raise ValueError(f"there is no decoder {name!r}")
    if not LEAST_TEMPERATURE <= model.temperature <= MOST_TEMPERATURE:
        raise ValueError(
            f"a temperature must be in {LEAST_TEMPERATURE}…{MOST_TEMPERATURE:g}, found {model.temperature}"
        )
    if not _is_span_calibration([*model.span_calibration]):
        raise ValueError(f"a span calibration has a positive slope and an offset, found {model.span_calibration}")
    labeller = model.labeller
    # Weights that share memory are stored separately: safetensors does not support sharing.
    weights = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in labeller.state_dict().items()}
    with new_folder(folder, names=(*MODEL_FILES, ENCODER)) as written:
        write_tensors(written / WEIGHTS, _stored(weights, config.training.storage), metadata={"format": "pt"})
        # Half the size without indentation: there are tens of thousands of entries.
        _write_json(written / VOCABULARY, model.vocabulary.to_dict(), indent=None)
        _write_json(written / METRICS, dict(model.metrics))
        labeller.encoder.write_files(written / ENCODER)
        description = {
            "format": FORMAT,
            # Version 1 has weights of the model's own type only.
            "format_version": 1 if config.training.storage == "float32" else FORMAT_VERSION,
            "written_by": __version__,
            "scheme": str(model.scheme),
            **({} if model.source_scheme is None else {"source_scheme": str(model.source_scheme)}),
            **({} if model.source_columns is None else {"source_columns": list(model.source_columns)}),
            "decoder": model.decoder,
            **({} if model.legal_decoder is None else {"legal_decoder": model.legal_decoder}),
            **({} if model.chosen_calls is None else {"chosen_calls": model.chosen_calls}),
            "temperature": model.temperature,
            **({"span_calibration": list(model.span_calibration)} if model.scheme is not LabelScheme.PLAIN else {}),
            "checksums": {name: _checksum(written / name) for name in (*_CHECKED_FILES, *_encoder_files(written))},
            "config": config.model_dump(mode="json"),
        }
        _write_json(written / CONFIG, description)
        card = model_card(
            model,
            base_model=labeller.encoder.hub_name,
            labels=OutputLabels(model.vocabulary.labels, model.scheme, model.output_scheme).names,
            num_parameters=sum(tensor.numel() for tensor in weights.values()),
        )
        (written / CARD).write_text(card, encoding="utf-8")
        listed = (CONFIG, *_CHECKED_FILES, METRICS, *_encoder_files(written))
        files = {
            name: {"bytes": (written / name).stat().st_size, "sha256": _checksum(written / name)} for name in listed
        }
        _write_json(written / MANIFEST, {"files": files})


def load_model(folder: StrPath) -> StoredModel:
    """Read a model folder; any problem is an `InputError`. The labeller is on the CPU, in evaluation mode."""
    path = Path(folder)
    files = _read_files(path)
    description = _object(path / CONFIG, files[CONFIG])
    settings = _settings(path, description)
    try:
        vocabulary = Vocabulary.from_dict(_object(path / VOCABULARY, files[VOCABULARY]))
    except (KeyError, TypeError, ValueError):
        raise InputError("not a vocabulary", path=path / VOCABULARY, remedy=_COPY_AGAIN) from None
    return StoredModel(
        labeller=_load_labeller(path, files, settings["config"], vocabulary, settings["scheme"]),
        vocabulary=vocabulary,
        metrics=_object(path / METRICS, files[METRICS]) if METRICS in files else {},
        **settings,
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
            for entry in archive.infolist():
                name = entry.filename
                if name not in MODEL_FILES and not _is_encoder_file(name):
                    raise InputError(
                        f"the bytes of a model hold {quoted(name)}, which is no file of one", remedy="save it again"
                    )
                # Only what is compressed can be larger than the bytes it comes from.
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise InputError(f"{name} in the bytes of a model is compressed", remedy="save it again")
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(archive.read(entry))
    except (zipfile.BadZipFile, EOFError, ValueError, RuntimeError, OSError, struct.error):
        raise InputError("these bytes are no model", remedy="give what Tagger.to_bytes returned") from None


def read_config(folder: StrPath) -> Config:
    """The configuration that a model was trained with."""
    from diffusion_mf.config.sections import AUTO

    path = Path(folder)
    _check_files(path)
    description = _object(path / CONFIG, _Reader(path).read(CONFIG))
    _check_format(path, description)
    settings = _settings(path, description)
    config: Config = settings["config"]
    if settings["chosen_calls"] is None:
        return config
    return config.model_copy(update={"inference": config.inference.model_copy(update={"num_calls": AUTO})})


def read_metrics(folder: StrPath) -> dict[str, Any]:
    """What was measured when the model was trained; empty if the file was not kept, since a model works without it."""
    path = Path(folder)
    return _object(path / METRICS, _Reader(path).read(METRICS)) if os.path.lexists(path / METRICS) else {}


class _Reader:
    """Reads files of a model folder and compares them with its manifest, if there is one."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._real_folder = folder, Path(os.path.realpath(folder))
        self.manifest: dict[str, Any] | None = None
        if os.path.lexists(folder / MANIFEST):
            self.manifest = _object(folder / MANIFEST, self._content(MANIFEST)).get("files")
            if not isinstance(self.manifest, dict):
                raise InputError("not a manifest", path=folder / MANIFEST, remedy=_COPY_AGAIN)

    def read(self, name: str, checksum: object = None) -> bytes:
        """The verified content of a file; without a manifest, ``checksum`` is its SHA-256 checksum (None: there is none)."""
        path = self._folder / name
        remedy = _COPY_AGAIN
        size = None
        if self.manifest is not None:
            if name in (CONFIG, METRICS):  # the others have a checksum in config.json, too
                remedy = f"{_COPY_AGAIN}, or delete {MANIFEST} if you changed it on purpose"
            entry = self.manifest.get(name)
            if not isinstance(entry, dict):
                raise InputError(f"not in {MANIFEST}", path=path, remedy=remedy)
            size, checksum = entry.get("bytes"), entry.get("sha256")
        elif checksum is None:
            return self._content(name)
        content = self._content(name, size, remedy)
        if hashlib.sha256(content).hexdigest() != checksum:
            raise _changed(path, remedy)
        return content

    def _content(self, name: str, size: object = None, remedy: str = _COPY_AGAIN) -> bytes:
        path = self._folder / name
        self._check_place(path)
        limit = MOST_BYTES.get(name, MOST_ENCODER_BYTES)
        with open_regular(path, limit=limit, remedy=_COPY_AGAIN) as stream:
            # Compared before reading: a damaged file may be much larger than what fits into memory.
            found = os.fstat(stream.fileno()).st_size
            if size is not None and found != size:
                raise _changed(path, remedy)
            try:
                return stream.read(found)  # Python allocates as much as is asked for
            except OSError as error:
                raise InputError(f"cannot be read ({error.strerror})", path=path, remedy=_COPY_AGAIN) from None

    def _check_place(self, path: Path) -> None:
        """Refuse links that leave the folder, but for those of the hub's cache, whose snapshots link to its blobs."""
        real, folder = Path(os.path.realpath(path)), self._real_folder
        is_blob = folder.parent.name == "snapshots" and real.parent == folder.parent.parent / "blobs"
        if not (is_blob or real.is_relative_to(folder)):
            raise InputError(
                "a link to a file outside of the model folder", path=path, remedy="put the file in its place"
            )


def _changed(path: Path, remedy: str) -> InputError:
    return InputError("damaged or changed since it was saved", path=path, remedy=remedy)


def _read_files(path: Path) -> dict[str, bytes]:
    """The content of every file of a model folder, all of one model: if another one is being saved there, try again."""
    deadline = time.monotonic() + SECONDS_TO_WAIT
    while True:
        before = _identity(path)
        try:
            return _read_once(path)
        except InputError:
            is_being_saved = _identity(path) != before or bool(_temporary_folders(path))
            if not is_being_saved or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _read_once(path: Path) -> dict[str, bytes]:
    _check_files(path)
    reader = _Reader(path)
    files = {CONFIG: reader.read(CONFIG)}
    description = _object(path / CONFIG, files[CONFIG])
    _check_format(path, description)
    checksums = _entry(path, description, "checksums", dict)
    names = checksums if reader.manifest is None else reader.manifest
    for name in (*_CHECKED_FILES, *(name for name in names if _is_encoder_file(name))):
        # What has no checksum is not accepted.
        files[name] = reader.read(name, checksums.get(name, ""))
    if os.path.lexists(path / METRICS):
        files[METRICS] = reader.read(METRICS)
    unknown = set(reader.manifest or ()) - {*files, METRICS}
    if unknown:
        raise InputError(f"lists the unknown file {min(unknown)!r}", path=path / MANIFEST, remedy=_COPY_AGAIN)
    return files


def _identity(path: Path) -> tuple[int, ...] | None:
    """Something that changes when another folder takes the place of this one."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # a ValueError if no file can have such a name
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _temporary_folders(final: Path) -> list[Path]:
    """The folders that `new_folder` makes for ``final``, of this process or others."""
    with contextlib.suppress(OSError):
        return [path for path in final.parent.iterdir() if is_temporary(path.name, final.name) and path.is_dir()]
    return []


def _load_labeller(
    path: Path, files: Mapping[str, bytes], config: Config, vocabulary: Vocabulary, scheme: LabelScheme
) -> Labeller:
    from diffusion_mf.model import Labeller

    # The initial weights of a network are random; loading a model must not change the random state.
    try:
        with torch.random.fork_rng(devices=[]), _encoder_copy(path, files) as encoder_files:
            labeller = Labeller(config, vocabulary, scheme, encoder_files=encoder_files)
    except ValueError as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"the configuration and the vocabulary do not fit each other ({reason})", path=path, remedy=_COPY_AGAIN
        ) from None
    try:
        weights = _decoded(safetensors.torch.load(files[WEIGHTS]), config.training.storage)
        added = {name: value for name, value in labeller.state_dict().items() if name.endswith(ADDED_LATER)}
        weights = {**added, **weights}
        _check_tensors(path / WEIGHTS, weights, labeller.state_dict())
        labeller.load_state_dict(weights)
    except (SafetensorError, RuntimeError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"the weights do not fit the model ({reason})", path=path / WEIGHTS, remedy="train it again"
        ) from None
    labeller.requires_grad_(False)
    return labeller.eval()


def rounded(weights: Mapping[str, Tensor], storage: str) -> dict[str, Tensor]:
    """The weights that a model has when it is loaded, if they are stored in the type ``storage``."""
    return _decoded(_stored(weights, storage), storage)


_SCALE = ":scale"
"""ends the names of the scales of int8 weights; no name of a parameter contains a colon"""


def _stored(weights: Mapping[str, Tensor], storage: str) -> dict[str, Tensor]:
    """The tensors to write: ``storage`` is that of `TrainingConfig`; int8 rows r are multiples of maxᵢ|rᵢ| / 127."""
    stored: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if storage == "float16" and tensor.dtype is torch.float32:
            stored[name] = tensor.half()
        elif storage == "int8" and tensor.dtype is torch.float32 and tensor.dim() > 1:
            scale = tensor.abs().amax(dim=-1, keepdim=True) / 127
            stored[name + _SCALE] = scale
            stored[name] = (tensor / scale.where(scale > 0, 1)).round().to(torch.int8)
        else:
            stored[name] = tensor
    return stored


def _decoded(stored: Mapping[str, Tensor], storage: str) -> dict[str, Tensor]:
    """The inverse of `_stored`, up to rounding."""
    weights = {name: tensor for name, tensor in stored.items() if not name.endswith(_SCALE)}
    if storage == "float16":
        return {name: tensor.float() if tensor.dtype is torch.float16 else tensor for name, tensor in weights.items()}
    if storage == "int8":
        return {
            name: tensor * stored[name + _SCALE] if tensor.dtype is torch.int8 else tensor
            for name, tensor in weights.items()
        }
    return dict(stored)


def _check_tensors(path: Path, weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse other types than the model's, which would be converted in silence, and numbers that are not finite."""
    for name, tensor in weights.items():
        if name in expected and tensor.dtype != expected[name].dtype:
            raise InputError(
                f"the tensor {name} has the type {tensor.dtype}, not {expected[name].dtype}",
                path=path,
                remedy=_COPY_AGAIN,
            )
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise InputError(
                f"the tensor {name} holds numbers that are not finite", path=path, remedy="train the model again"
            )


@contextlib.contextmanager
def _encoder_copy(path: Path, files: Mapping[str, bytes]) -> Iterator[Path]:
    """A folder with the verified files of an encoder, which its library reads by name; errors name the model's own."""
    if not any(map(_is_encoder_file, files)) and not os.path.lexists(path / ENCODER):
        yield path / ENCODER  # nothing to copy, and perhaps nowhere to write
        return
    with tempfile.TemporaryDirectory(prefix="diffusion-mf-") as temporary:
        copy = Path(temporary) / ENCODER
        copy.mkdir()
        for name in files:
            if _is_encoder_file(name):
                (Path(temporary) / name).write_bytes(files[name])
        try:
            yield copy
        except InputError as error:
            if error.path is None or not Path(error.path).is_relative_to(temporary):
                raise
            place = path / Path(error.path).relative_to(temporary)
            raise InputError(error.problem, path=place, line=error.line, remedy=error.remedy) from None


def is_exported(path: StrPath) -> bool:
    """Whether a folder is one that ``dmf export --to onnx`` wrote."""
    return os.path.isfile(os.path.join(path, "words.onnx")) and not os.path.lexists(os.path.join(path, CONFIG))


def _check_files(path: Path) -> None:
    if not os.path.exists(path):
        # A mistyped path must never load the model of a stranger, so that names of the hub are marked as such.
        remedy = "check the path"
        if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", str(path)):
            remedy += f", or write {HUB_PREFIX}{path} for a model on the Hugging Face hub"
        elif re.fullmatch(r"[\w.-]+", str(path)):
            remedy += "; dmf models lists those that come with the package"
        raise InputError("no such model folder", path=path, remedy=remedy)
    if not path.is_dir():
        raise InputError("this is a file, not a model folder", path=path, remedy="name the folder that holds it")
    missing = [name for name in (CONFIG, VOCABULARY, WEIGHTS) if not os.path.lexists(path / name)]
    if is_exported(path):
        raise InputError(
            "this is an ONNX export, which only diffusion_mf.onnx.Tagger reads",
            path=path,
            remedy="use that in Python (docs/deployment.md), or name the model that was exported",
        )
    if missing:
        inside = path / "model"
        hint = f"name {inside}" if (inside / CONFIG).is_file() else "name a folder that dmf train wrote"
        raise InputError(f"not a model folder: {', '.join(missing)} missing", path=path, remedy=hint)


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
        raise InputError(f"there is no format version {version}", path=path / CONFIG, remedy=_COPY_AGAIN)


def _settings(path: Path, description: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `StoredModel` that config.json holds."""
    from diffusion_mf.config import saved_config

    config = saved_config(_entry(path, description, "config", dict), path=path / CONFIG, is_trained=True)
    scheme = _entry(path, description, "scheme", str)
    decoder = _entry(path, description, "decoder", str)
    temperature = _entry(path, description, "temperature", (int, float))
    # Earlier versions did not write these three.
    source_scheme, legal, chosen_calls = (
        _entry(path, description, key, kind) if key in description else None
        for key, kind in (("source_scheme", str), ("legal_decoder", str), ("chosen_calls", int))
    )
    has_schemes = {scheme, source_scheme or scheme} <= {*LabelScheme}
    has_decoders = {decoder, legal or decoder} <= DECODERS.keys()
    if not (has_schemes and has_decoders and LEAST_TEMPERATURE <= temperature <= MOST_TEMPERATURE):
        raise InputError(
            f"the scheme {scheme}, the decoder {decoder} or the temperature {quoted(temperature)} is invalid",
            path=path / CONFIG,
            remedy=_COPY_AGAIN,
        )
    span_calibration = description.get("span_calibration", [1.0, 0.0])
    if not _is_span_calibration(span_calibration):
        raise InputError("no usable 'span_calibration'", path=path / CONFIG, remedy=_COPY_AGAIN)
    slope, offset = map(float, span_calibration)
    source_columns = description.get("source_columns")
    if source_columns is not None and not _are_columns(source_columns):
        raise InputError("no usable 'source_columns'", path=path / CONFIG, remedy=_COPY_AGAIN)
    return {
        "config": config,
        "scheme": LabelScheme(scheme),
        "decoder": decoder,
        "temperature": float(temperature),
        "source_scheme": None if source_scheme is None else LabelScheme(source_scheme),
        "legal_decoder": legal,
        "chosen_calls": chosen_calls,
        "source_columns": None if source_columns is None else (source_columns[0], source_columns[1]),
        "span_calibration": (slope, offset),
    }


def _are_columns(value: Any) -> bool:
    """Whether it is a list of the numbers of two columns."""
    return isinstance(value, list) and len(value) == 2 and all(type(each) is int and each > 0 for each in value)


def _is_span_calibration(value: Any) -> bool:
    """Whether it is a list of a positive slope and an offset, both within reason."""
    is_pair = isinstance(value, list) and len(value) == 2 and all(type(number) in (int, float) for number in value)
    return is_pair and 0 < value[0] <= MOST_CALIBRATION and abs(value[1]) <= MOST_CALIBRATION


def _entry(path: Path, description: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
    value = description.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"no usable {key!r}", path=path / CONFIG, remedy=_COPY_AGAIN)
    return value


def _object(path: Path, content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content.decode("utf-8"), parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InputError("damaged: not a JSON object", path=path, remedy=_COPY_AGAIN)
    return value


def _write_json(path: Path, value: Mapping[str, Any], *, indent: int | None = 1) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False) + "\n", encoding="utf-8")


def _checksum(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _encoder_files(folder: Path) -> list[str]:
    return sorted(f"{ENCODER}/{file.name}" for file in (folder / ENCODER).glob("*"))


def _is_encoder_file(name: object) -> bool:
    return isinstance(name, str) and name.startswith(f"{ENCODER}/") and name.count("/") == 1 and ".." not in name


@contextlib.contextmanager
def new_folder(folder: StrPath, *, names: Collection[str]) -> Iterator[Path]:
    """An empty folder to fill, renamed to ``folder`` when the block succeeds and removed otherwise.

    It takes the place of a folder that holds nothing but files with these ``names``; any other is an `InputError`.
    """
    final = Path(os.path.realpath(folder))
    if final.exists() and not final.is_dir():
        raise InputError("this is a file", path=folder, remedy="name a folder to write the model to")
    if final.is_dir() and not set(os.listdir(final)) <= set(names):
        raise InputError("this folder contains other files", path=folder, remedy="name a new folder for the model")
    temporary: Path | None = None
    lock: int | None = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        restore(final)
        temporary, lock = _new_temporary(final)
        written = temporary / "new"
        written.mkdir()
        yield written
        if final.exists():
            # The older model is removed only after the new one is in its place.
            final.rename(temporary / "old")
        written.rename(final)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(
            f"the model cannot be written ({reason})", path=folder, remedy="check the free space and permissions"
        ) from error
    finally:
        if temporary is not None:
            _clear(temporary, final)
        if lock is not None:
            os.close(lock)


def restore(folder: StrPath) -> None:
    """Remove what processes that were killed while saving a model left beside it; the older model returns to its place."""
    final = Path(os.path.realpath(folder))
    for leftover in _temporary_folders(final):
        lock = _open_folder(leftover)
        # Somebody else may be saving a model here at this moment.
        if lock is not None and try_lock(lock):
            _clear(leftover, final)
        if lock is not None:
            os.close(lock)


def _clear(temporary: Path, final: Path) -> None:
    if (temporary / "old").exists() and not final.exists():
        (temporary / "old").rename(final)
    shutil.rmtree(temporary, ignore_errors=True)


def _new_temporary(final: Path) -> tuple[Path, int | None]:
    """A new folder beside ``final``, and a handle that keeps its lock."""
    while True:
        path = final.parent / temporary_name(final.name)
        try:
            path.mkdir()
        except FileExistsError:
            continue
        lock = _open_folder(path)
        # Another process may take it for a leftover before it is locked.
        if (lock is None or try_lock(lock) is not False) and path.exists():
            return path, lock
        if lock is not None:
            os.close(lock)


def _open_folder(path: Path) -> int | None:
    """A handle of a folder; None where the system has none."""
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return None
