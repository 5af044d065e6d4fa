from __future__ import annotations

import subprocess
import sys

import pytest

import diffusion_mf


def loaded_modules(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


def test_importing_the_package_and_its_commands_waits_for_nothing() -> None:
    loaded = loaded_modules("import diffusion_mf, diffusion_mf.cli")
    assert "diffusion_mf.cli.tag" in loaded
    assert not loaded & {"torch", "numpy", "matplotlib", "safetensors", "pydantic", "huggingface_hub"}


def test_training_labelling_and_the_demonstration_do_without_the_libraries_of_experiments() -> None:
    modules = ("training.loop", "tagger", "evaluation.report", "lab.demo.run", "lab.experiments.worker")
    loaded = loaded_modules("\n".join(f"import diffusion_mf.{module}" for module in modules))
    assert "torch" in loaded
    assert not loaded & {"pandas", "scipy", "optuna"}


def test_the_names_promised() -> None:
    from diffusion_mf import Tagger, load, train

    assert Tagger.__name__ == "Tagger"
    assert callable(load)
    assert callable(train)
    assert {"Tagger", "load", "train"} <= set(dir(diffusion_mf))
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        _ = diffusion_mf.tarin
