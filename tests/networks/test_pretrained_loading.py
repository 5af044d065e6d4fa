"""Folders and names of encoders: what is refused and how it is said; no network, no pickles."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

import tiny_encoders
from tiny_encoders import SENTENCES, VOCABULARY, batch_of, tiny_encoder, write_encoder
from typer.testing import CliRunner

from diffusion_mf.cli import app
from diffusion_mf.config import Config, EncoderConfig, load_config
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.errors import InputError
from diffusion_mf.model import count_parameters
from diffusion_mf.networks.pretrained import hugging_face
from diffusion_mf.networks.pretrained.conversion import convert_encoder
from diffusion_mf.networks.pretrained.encoder import choose_trainable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_encoder(tmp_path / "bert")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every attempt to reach another machine is recorded and fails."""
    attempts: list[object] = []

    def refuse(*arguments: object, **options: object) -> None:
        attempts.append(arguments)
        raise OSError("there is no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return attempts


def test_a_folder_never_touches_the_network(folder: Path, no_network: list[object]) -> None:
    tiny_encoder(folder)
    assert not no_network


def test_a_missing_model_says_how_to_get_it(no_network: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    # Read from HF_HUB_OFFLINE when the package is imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError) as caught:
        tiny_encoder("nobody/no-such-encoder")
    assert "hf download nobody/no-such-encoder --local-dir FOLDER" in str(caught.value)
    assert "(which was not contacted because HF_HUB_OFFLINE is set)" in str(caught.value)
    assert not no_network
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("is_listening", [False, True])
def test_a_hub_that_does_not_answer_is_asked_once(is_listening: bool, tmp_path: Path) -> None:
    """In a process of its own, for the hub's client reads its settings when it is imported."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if is_listening:
            server.listen()
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        program = """
import time
from diffusion_mf.errors import InputError
from diffusion_mf.model import hub
from diffusion_mf.networks.pretrained import hugging_face
from tiny_encoders import tiny_encoder
import huggingface_hub.hf_api, transformers
hugging_face.HUB_TIMEOUT = 0.5
for load in (tiny_encoder, hub.download):
    start = time.monotonic()
    try:
        load("nobody/no-such-encoder")
    except InputError as error:
        print(error)
    assert time.monotonic() - start < 10, time.monotonic() - start
"""
        result = subprocess.run(
            [sys.executable, "-c", program],
            env={
                **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
                "HF_ENDPOINT": endpoint,
                "HF_HUB_CACHE": str(tmp_path),
                "HF_HUB_OFFLINE": "0",
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert result.returncode == 0, result.stderr
    encoder, model = result.stdout.splitlines()
    reason = f"(which cannot be reached at {endpoint}); "
    assert encoder.startswith("the encoder nobody/no-such-encoder is neither a folder here nor available from")
    assert f"{reason}on a machine with access: hf download" in encoder
    assert model.endswith(f"from the hub {reason}give a folder, or check the connection.")


def test_a_model_fetched_before_needs_no_network(tmp_path: Path) -> None:
    """In a process of its own, for the hub's client reads its settings when it is imported."""
    cache = tmp_path / "cache" / "models--nobody--tiny"
    write_encoder(cache / "snapshots" / ("a" * 40))
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("a" * 40)
    program = """
import socket
def refuse(*arguments, **options):
    raise SystemExit("the network was asked for")
socket.getaddrinfo = refuse
from tiny_encoders import SENTENCES, batch_of, tiny_encoder
encoder = tiny_encoder("nobody/tiny")
print(tuple(encoder(batch_of(encoder, SENTENCES)).shape))
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HF_HUB_CACHE": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "(4, 8, 16)\n", result.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/folder", "no such encoder folder"),
        ("$NO_SUCH_VARIABLE/granite", "contains a variable that is not set"),
    ],
)
def test_paths_are_not_looked_for_on_the_hub(name: str, message: str, no_network: list[object]) -> None:
    with pytest.raises(InputError, match=message):
        tiny_encoder(name)
    assert not no_network


def test_variables_in_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_ENCODERS", "/encoders")
    path = tmp_path / "config.toml"
    path.write_text('task = "pos"\nsystem = "lcrf"\n[encoder]\nkind = "pretrained"\nmodel = "$SOME_ENCODERS/granite"\n')
    config = load_config(path)
    assert config.encoder.model == "/encoders/granite"
    assert config.encoder.title == "granite"
    assert EncoderConfig(kind="pretrained", model="hfl/chinese").title == "hfl/chinese"
    assert EncoderConfig().title == "scratch"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('kind = "pretrained"', "a pretrained encoder needs a model"),
        ('model = "bert"', 'kind is "scratch"'),
        ('kind = "pretrained"\nmodel = "bert"\ncache = "states"', 'cache needs freeze = "all"'),
        ('kind = "pretrained"\nmodel = "bert"\nlora_rank = 4\nfreeze_layers = 2', "freeze_layers must be 0"),
        ('kind = "pretrained"\nmodel = "bert"\non_long = "windows"', "the nearest is window"),
    ],
)
def test_settings_that_do_not_fit(tmp_path: Path, settings: str, message: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'task = "pos"\nsystem = "lcrf"\n[encoder]\n{settings}\n')
    with pytest.raises(InputError, match=message):
        load_config(path)


def test_folders_without_configuration_or_weights(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match="config"):
        tiny_encoder(empty)
    (folder / "model.safetensors").rename(folder / "other.txt")
    with pytest.raises(InputError, match="no safetensors weights; copy all files"):
        tiny_encoder(folder)
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="dmf convert-encoder"):
        tiny_encoder(folder)


def test_a_tokenizer_of_another_model(folder: Path) -> None:
    tiny_encoders.byte_level().save_pretrained(folder)
    with pytest.raises(InputError, match=r"ids up to \d+, but the model has 25 embeddings; use the tokenizer"):
        tiny_encoder(folder)


def test_a_tokenizer_that_fits_by_its_ids_alone(tmp_path: Path) -> None:
    """Without files, transformers makes up a tokenizer of special tokens, to which every word is unknown."""
    without = write_encoder(tmp_path / "without")
    for file in without.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(InputError, match=r"has \d+ tokens, but the model 25 embeddings: .*; use the tokenizer"):
        tiny_encoder(without)
    roberta = write_encoder(tmp_path / "roberta", "roberta")
    other = tiny_encoders.byte_level()
    other.pad_token = "<mask>"
    other.save_pretrained(roberta)
    with pytest.raises(InputError, match="pads with 4, the model with 1"):
        tiny_encoder(roberta)


def test_weights_of_other_sizes(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "intermediate_size": 48}))
    with pytest.raises(InputError, match=r"6 weights have other sizes .*, which is \(32,\), not \(48,\)"):
        tiny_encoder(folder)


def test_damaged_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(InputError, match="cannot be loaded"):
        tiny_encoder(folder)


def test_a_model_with_code_is_refused_without_a_question(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = json.loads((folder / "config.json").read_text())
    code = {"model_type": "own", "auto_map": {"AutoConfig": "own.Settings", "AutoModel": "own.Model"}}
    (folder / "config.json").write_text(json.dumps({**settings, **code}))
    (folder / "own.py").write_text("raise SystemExit('this ran')")
    asked: list[object] = []
    monkeypatch.setattr("builtins.input", lambda *prompt: asked.append(prompt) or "y")
    with pytest.raises(InputError, match="its own code, which is never run"):
        tiny_encoder(folder)
    assert not asked


def test_a_configuration_of_another_model(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "num_hidden_layers": 3}))
    with pytest.raises(InputError, match="the weights lack 16 of the model's tensors"):
        tiny_encoder(folder)


def test_transformers_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"pip install 'diffusion-mf\[pretrained\]'"):
        hugging_face.load_pretrained(EncoderConfig(kind="pretrained", model=str(folder)))


def test_parameters_are_counted_without_weights(folder: Path) -> None:
    values = {"task": "pos", "system": "unigram", "encoder": {"kind": "pretrained", "model": str(folder)}}
    counted = count_parameters(Config.model_validate(values), VOCABULARY, LabelScheme.PLAIN)
    own = sum(parameter.numel() for parameter in tiny_encoder(folder).parameters())
    assert counted > own > 16 * 25


def test_shared_layers_are_not_frozen_one_by_one(tmp_path: Path) -> None:
    encoder = tiny_encoder(write_encoder(tmp_path / "albert", "albert"))
    for number in (1, 2):
        with pytest.raises(InputError, match=f"freeze_layers is {number}, but the layers of this encoder share"):
            choose_trainable(encoder.model, encoder.config.model_copy(update={"freeze_layers": number}))


@pytest.mark.parametrize("architecture", ["bert", "roberta", "modernbert", "deberta-v2", "gpt2"])
def test_a_decoder_is_noticed(architecture: str, tmp_path: Path) -> None:
    notes: list[str] = []
    encoder = tiny_encoder(write_encoder(tmp_path / "encoder", architecture)).train()
    for _ in range(2):
        encoder.study(SENTENCES, note=notes.append)
    assert sum("is a decoder" in note for note in notes) == (architecture == "gpt2")
    assert encoder.model.training


# PyTorch files.


def as_pytorch(folder: Path, *, parts: int = 1, rename: tuple[str, str] = ("", "")) -> None:
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = list(weights)
    for part in range(parts):
        chosen = {name.replace(*rename): weights[name] for name in names[part::parts]}
        name = "pytorch_model.bin" if parts == 1 else f"pytorch_model-{part + 1:05}-of-{parts:05}.bin"
        torch.save(chosen, folder / name)


@pytest.mark.parametrize("parts", [1, 2])
def test_converted_weights_are_the_same(folder: Path, tmp_path: Path, parts: int) -> None:
    with torch.no_grad():
        encoder = tiny_encoder(folder)
        expected = encoder(batch_of(encoder, SENTENCES))
        as_pytorch(folder, parts=parts, rename=("LayerNorm.weight", "LayerNorm.gamma"))
        result = CliRunner().invoke(app, ["convert-encoder", str(folder), str(tmp_path / "new"), "--json"])
        assert result.exit_code == 0
        assert json.loads(result.stdout)["tensors"] == 39
        encoder = tiny_encoder(tmp_path / "new")
        assert encoder(batch_of(encoder, SENTENCES)).equal(expected)
    assert not list((tmp_path / "new").glob("*.bin"))


class Harmful:
    """Unpickling it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_file_that_would_run_code_is_refused_and_does_not(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"a": Harmful(tmp_path / "harm")}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="not a file of plain tensors"):
        convert_encoder(folder, tmp_path / "new")
    assert not (tmp_path / "harm").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bert"]


def test_a_missing_part_of_the_weights_is_noticed(folder: Path, tmp_path: Path) -> None:
    as_pytorch(folder, parts=2)
    names = sorted(path.name for path in folder.glob("*.bin"))
    index = {"weight_map": dict(zip("ab", names, strict=True))}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index), encoding="utf-8")
    content = (folder / names[1]).read_bytes()
    (folder / names[1]).unlink()
    with pytest.raises(InputError, match=f"1 of 2 parts of the weights are missing, such as {re.escape(names[1])}"):
        convert_encoder(folder, tmp_path / "new")
    (folder / names[1]).write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="damaged, or not a PyTorch file"):
        convert_encoder(folder, tmp_path / "new")


def test_conversions_that_cannot_be(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there are no PyTorch weights"):
        convert_encoder(folder, tmp_path / "new")
    with pytest.raises(InputError, match="already exists"):
        convert_encoder(folder, folder)
    with pytest.raises(InputError, match="config"):
        convert_encoder(tmp_path, tmp_path / "new")
    (folder / "model.safetensors").unlink()
    torch.save({"a": "text"}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="no named tensors"):
        convert_encoder(folder, tmp_path / "new")
