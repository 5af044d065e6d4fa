"""What is wrong with a plan is said in one sentence, with its file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiment_files import write_plan

from diffusion_mf.config.errors import line_of
from diffusion_mf.errors import InputError
from diffusion_mf.lab.experiments.plan import check_files, load_plan
from diffusion_mf.lab.experiments.search_plan import load_search

GOOD = 'systems = ["unigram"]\nseeds = [1]\n'  # lines 3 and 4, after what write_plan puts before them


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "[set]\ntraining.epoch = 3\n", "line 6: unknown key training.epoch; the nearest name is"),
        (
            GOOD + "[grid]\ndenoiser.layers = [1, -3]\n",
            "line 6: denoiser.layers must be greater than or equal to 1, found -3",
        ),
        (GOOD + "[variants.a.training]\nepochs = 0\n", "line 6: training.epochs must be"),
        (GOOD + '[encoders.scratch]\n"encoder.width" = "x"\n', "line 6: encoder.width must be"),
        (
            GOOD + '[[exceptions]]\nwhere = {}\n[[exceptions]]\nwhere = {}\nset = { "training.epochs" = "x" }\n',
            "line 9: training.epochs must be",
        ),
        (GOOD + '[[exceptions]]\nwhere = { sytem = "lcrf" }\n', "line 6: exceptions.0.where.sytem must be"),
        (
            GOOD + '[[exceptions]]\nwhere = { system = "lrcf" }\nskip = true\n',
            "line 6: an exception is for the system 'lrcf'",
        ),
        (GOOD + '[[exceptions]]\nwhere = { variant = "b" }\nskip = true\n', "choose from default."),
        ('systems = ["unigram"]\nseeds = [1, -1]\n', "line 4: seeds.1 must be greater than or equal to 0, found -1"),
        ('systems = ["unigram"]\nseeds = [1, 2, 1]\n', "line 4: seeds must contain 1 only once"),
        (GOOD + "x = = 3\n", "line 5: not valid TOML (Invalid value)"),
    ],
)
def test_line_of_the_plan(tmp_path: Path, text: str, message: str) -> None:
    path = write_plan(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_plan(path)
    assert str(caught.value).startswith(f"{path}, line")
    assert message in str(caught.value)


def test_settings_of_the_command_line_are_not_the_plans(tmp_path: Path) -> None:
    path = write_plan(tmp_path, GOOD + "[set]\ntraining.epochs = 3\n")
    with pytest.raises(InputError) as caught:
        load_plan(path, overrides=["training.epochs=-1"])
    assert caught.value.path is None


@pytest.mark.parametrize("configs", ["{tsk}.toml", "{small.toml", "{}.toml"])
def test_names_of_configurations_that_cannot_be_filled_in(tmp_path: Path, configs: str) -> None:
    path = write_plan(tmp_path, GOOD)
    path.write_text(path.read_text().replace("small.toml", configs))
    with pytest.raises(InputError, match=r"use \{task\}, \{system\}, \{corpus\}, \{encoder\} and no other braces"):
        load_plan(path)


def test_corpora_in_the_plan_itself(tmp_path: Path) -> None:
    path = write_plan(tmp_path, GOOD)
    text = 'configs = "small.toml"\n' + GOOD + '[corpora.toy]\ntask = "posx"\ntrain = "x"\ndev = "x"\n'
    path.write_text(text)
    with pytest.raises(InputError, match=r"line 5: corpora\.toy\.task must be 'pos', 'ner' or 'seg-pos', found 'posx'"):
        load_plan(path)
    path.write_text(text.replace("posx", "pos").replace('train = "x"', "train = 3"))
    with pytest.raises(
        InputError, match=r"line 6: corpora\.toy\.train must be a valid string or a valid list, found 3"
    ):
        load_plan(path)


def test_a_variable_that_is_not_set_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_FOLDER", raising=False)
    path = write_plan(tmp_path, GOOD)
    (tmp_path / "corpora.toml").write_text('[tiny]\ntask = "ner"\ntrain = "$NO_SUCH_FOLDER/x"\ndev = "y"\n')
    with pytest.raises(InputError, match="the environment variable NO_SUCH_FOLDER is not set; write export"):
        check_files(load_plan(path).runs[0].config.data.train)


def test_equal_last_parts_of_a_grid_keep_their_full_names(tmp_path: Path) -> None:
    plan = load_plan(write_plan(tmp_path, GOOD + "[grid]\nencoder.layers = [1, 2]\ndenoiser.layers = [3]\n"))
    assert [run.variant for run in plan.runs] == [
        "encoder.layers=1 denoiser.layers=3",
        "encoder.layers=2 denoiser.layers=3",
    ]


def test_a_search_with_a_setting_that_does_not_exist(tmp_path: Path) -> None:
    stage = '[[stages]]\nname = "a"\ntrials = 2\n[stages.space]\nencoder.layer = [1, 2]\n'
    with pytest.raises(InputError, match=r"plan\.toml: stage a: unknown key encoder\.layer; the nearest name is"):
        load_search(write_plan(tmp_path, GOOD + stage))


def test_lines_of_arrays_of_tables() -> None:
    text = '[[a]]\nb = 1\n[[a]]\nb = 2\n[a.c]\n"d.e" = 3\n'
    assert [line_of(key, text) for key in (("a", "0", "b"), ("a", "1", "b"), ("a", "1", "c", "d", "e"), ("z",))] == [
        2,
        4,
        6,
        None,
    ]
