"""The parts in NumPy agree with the package's own; the runtime needs neither PyTorch nor the rest of the package."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import small_model, small_tagger

from diffusion_mf.data.corpus import Task
from diffusion_mf.diffusion.keyed_random import keyed_normals
from diffusion_mf.model.core import Use, content_keys
from diffusion_mf.onnx import bits
from diffusion_mf.onnx.decoding import viterbi
from diffusion_mf.ops.viterbi import viterbi as viterbi_of_torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
SENTENCES = [["Ada", "Byron", "sings", "in", "Oslo"], ["Eve"], ["Unseen", "choir"]]
DEPENDENCIES = (
    "torch",
    "safetensors",
    "huggingface_hub",
    "pydantic",
    "typer",
    "rich",
    "jaxtyping",
    "zstandard",
    "onnx",
)

TAG = f"""
import sys
for name in {DEPENDENCIES}:
    sys.modules[name] = None  # an import of it fails
import json
from diffusion_mf.onnx import Tagger
results = Tagger.load(sys.argv[1], threads=1).tag(json.loads(sys.argv[2]))
import diffusion_mf
print(json.dumps([diffusion_mf.__file__, [result.labels for result in results]]))
"""


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 6), st.integers(1, 5), st.booleans(), st.booleans())
def test_viterbi_finds_the_sequences_of_the_package(
    seed: int, B: int, N: int, K: int, is_local: bool, has_ties: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    unary = torch.randn(B, N, K, generator=generator)
    transition = torch.randn(*((B, N - 1, K, K) if is_local else (K, K)), generator=generator)
    if has_ties:
        unary, transition = unary.round(), transition.round()
    lengths = torch.randint(1, N + 1, (B,), generator=generator)
    expected = viterbi_of_torch(unary, transition, lengths).labels
    assert viterbi(unary.numpy(), transition.numpy(), lengths.numpy()).tolist() == expected.tolist()


def test_noise_of_a_sentence_is_that_of_the_package() -> None:
    form_ids = torch.tensor([[5, 3, 90_000], [7, 0, 0]])
    keys = content_keys(form_ids, form_ids > 0)
    assert bits.content_keys(form_ids.numpy()).astype(np.int64).tolist() == keys.tolist()
    for seed, step in ((1, 0), (2**31, 12)):
        expected = keyed_normals(keys, (3, 4), seed=seed, step=step, stream=Use.DDIM)
        found = bits.keyed_normals(keys.numpy().astype(np.uint64), (3, 4), seed=seed, step=step)
        np.testing.assert_allclose(found, expected.numpy(), rtol=2e-7)


def run(code: str, *arguments: str, path: pathlib.Path) -> Any:
    # From a folder of its own, so that nothing is imported from the current one.
    command = [sys.executable, "-P", "-c", code, *arguments]
    environment = os.environ | {"PYTHONPATH": str(path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("onnx.defs", reason="the extra onnx is not installed")
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    from diffusion_mf.onnx.export import export_model

    folder = tmp_path_factory.mktemp("exported") / "model"
    export_model(small_model("diffusion-mf", Task.NER, seed=5), folder)
    return str(folder)


def expected_labels() -> list[list[str]]:
    return [result.labels for result in small_tagger("diffusion-mf", Task.NER, seed=5).tag(SENTENCES)]


def test_the_runtime_imports_neither_pytorch_nor_other_dependencies(exported: str) -> None:
    _, labels = run(TAG, exported, json.dumps(SENTENCES), path=ROOT / "src")
    assert labels == expected_labels()


def test_importing_the_runtime_does_not_import_onnx_runtime_or_the_package() -> None:
    code = "import sys, json, diffusion_mf.onnx; print(json.dumps([n for n in sys.modules if n.startswith(('diffusion_mf.', 'torch', 'onnxr'))]))"
    modules = set(run(code, path=ROOT / "src"))
    rooms = {name.split(".")[1] for name in modules if name.startswith("diffusion_mf.")}
    assert rooms == {"onnx", "data", "errors"}
    assert all(name.startswith("diffusion_mf.") for name in modules)


def test_its_own_distribution_tags_without_pytorch(exported: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling, which builds distributions, is not installed")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-build-isolation", "--no-deps", "--no-index"]
    build = [*pip, "wheel", *offline, "--wheel-dir", str(tmp_path / "wheels"), str(ROOT / "deploy" / "onnx")]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert wheel.name.startswith("diffusion_mf_onnx-")
    install = [*pip, "install", "--no-deps", "--no-index", "--target", str(tmp_path / "site"), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    assert not list((tmp_path / "site").rglob("export.py"))
    place, labels = run(TAG, exported, json.dumps(SENTENCES), path=tmp_path / "site")
    assert pathlib.Path(place).is_relative_to(tmp_path / "site")
    assert labels == expected_labels()
