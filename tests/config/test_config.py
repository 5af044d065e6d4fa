"""Configurations: what is refused and how, presets, and the files in configs/."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from diffusion_mf.batches.vocabulary import Vocabulary
from diffusion_mf.config import Config, load_config
from diffusion_mf.config.errors import parse_override
from diffusion_mf.config.files import config_names
from diffusion_mf.config.sections import REMOVED, SIZES
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.model import count_parameters
from diffusion_mf.systems import SYSTEMS

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
TASKS = ("pos", "ner", "seg-pos")
GOOD = 'task = "ner"\nsystem = "diffusion-mf"\n'


@pytest.fixture
def write(tmp_path):
    def writer(text: str) -> pathlib.Path:
        path = tmp_path / "run.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return writer


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (GOOD + "[encoder]\nlayer = 4\n", 4, "unknown key encoder.layer; the nearest name is encoder.layers."),
        (GOOD + "learning_rate = 1\n", 3, "unknown key learning_rate; the nearest name is training.learning_rate."),
        (GOOD + "[trainig]\nepochs = 1\n", 3, "unknown key trainig; the nearest name is training."),
        (GOOD + "[bits]\nxyz = 1\n", 4, "unknown key bits.xyz; the valid names are bits.scale, bits.noise,"),
        (GOOD + '[encoder]\nlayers = "4"\n', 4, "encoder.layers must be a valid integer, found '4'"),
        (GOOD + "[encoder]\nlayers = 2.5\n", 4, "encoder.layers must be a valid integer"),
        (GOOD + "[training]\nepochs = true\n", 4, "training.epochs must be a valid integer, found True"),
        (
            GOOD + '[inference]\nnum_calls = "atuo"\n',
            4,
            "inference.num_calls must be a valid integer or 'auto', found 'atuo'; the nearest is auto.",
        ),
        (GOOD + "[inference]\nnum_calls = 0\n", 4, "must be greater than or equal to 1 or 'auto', found 0"),
        (GOOD + "[encoder]\ndropout = 1.5\n", 4, "encoder.dropout must be less than 1, found 1.5"),
        (GOOD + "[training]\nlearning_rate = nan\n", 4, "training.learning_rate must be a finite number, found nan"),
        (GOOD + "[encoder]\nwidth = 100\nheads = 8\n", 3, "encoder width must be a multiple of twice the heads"),
        (GOOD + "[denoiser]\ntime_width = 7\n", 3, "denoiser time_width must be even, found 7"),
        (GOOD + '[structure]\ntransitions = "globl"\n', 4, "found 'globl'; the nearest is global."),
        (GOOD + "encoder = 3\n", 3, "encoder must be a section, found 3; write [encoder]."),
        (
            'task = "ner"\nsystem = "difusion-mf"\n',
            2,
            "found 'difusion-mf'; the nearest is diffusion-mf, or add --plugin MODULE",
        ),
        (
            'task = "nerr"\nsystem = "lcrf"\n',
            1,
            "task must be 'pos', 'ner' or 'seg-pos', found 'nerr'; the nearest is ner.",
        ),
        (GOOD + 'size = "XXL"\n', 3, "size must be 'XS', 'S', 'M', 'L' or 'XL', found 'XXL'"),
    ],
)
def test_mistakes_are_one_sentence_with_file_line_and_key(write, text, line, message) -> None:
    path = write(text)
    with pytest.raises(InputError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert message in str(caught.value)
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('system = "lcrf"\n', "the key task is missing"),
        ("task = \n", "line 1: not valid TOML"),
        ("task = 'ner'\ntask = 'pos'\n", "line 2: not valid TOML"),
    ],
)
def test_files_that_are_no_configuration(write, text, message) -> None:
    path = write(text)
    with pytest.raises(InputError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}")
    assert message in str(caught.value)


def test_a_missing_file_and_bytes_that_are_no_text(tmp_path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_config(tmp_path / "nothing.toml")
    (tmp_path / "bad.toml").write_bytes(b"task = \xff")
    with pytest.raises(InputError, match="not valid TOML"):
        load_config(tmp_path / "bad.toml")


def test_overrides_win_and_bare_words_are_strings(write) -> None:
    path = write(GOOD + "[training]\nepochs = 9\n")
    config = load_config(
        path,
        [
            "training.epochs=3",
            "system=lcrf",
            "structure.transitions=local",
            "training.decay='none'",
            "data.train=a b.txt",
        ],
    )
    assert (config.training.epochs, config.system, config.structure.transitions) == (3, "lcrf", "local")
    assert (config.training.decay, config.data.train) == ("none", "a b.txt")
    assert parse_override("a.b=[1, 2]") == (("a", "b"), [1, 2])
    assert parse_override("x==") == (("x",), "=")


@pytest.mark.parametrize("override", ["epochs", "=3", "training..epochs=3"])
def test_overrides_that_are_none(write, override) -> None:
    with pytest.raises(InputError, match=r"is not a setting; write key=value"):
        load_config(write(GOOD), [override])


def test_a_bad_override_is_not_blamed_on_the_file(write) -> None:
    with pytest.raises(InputError) as caught:
        load_config(write(GOOD), ["encoder.layrs=4"])
    assert str(caught.value) == "unknown key encoder.layrs; the nearest name is encoder.layers."


def test_a_size_fills_in_dimensions_that_are_not_given(write) -> None:
    path = write(GOOD + 'size = "M"\n[denoiser]\nlayers = 3\n')
    config = load_config(path)
    assert (config.denoiser.layers, config.denoiser.width, config.encoder.layers) == (3, 512, 2)


def test_a_size_on_the_command_line_wins_over_the_file_and_a_dimension_there_over_both(write) -> None:
    path = write(GOOD + "[denoiser]\nlayers = 3\nwidth = 64\n[encoder]\nlayers = 1\ndropout = 0.25\n")
    config = load_config(path, ["size=M"])
    assert (config.denoiser.layers, config.denoiser.width, config.encoder.layers) == (8, 512, 2)
    assert config.encoder.dropout == 0.25
    assert load_config(path, ["size=M", "denoiser.layers=2"]).denoiser.layers == 2
    assert load_config(path, ["denoiser.layers=2", "size=M"]).denoiser.layers == 2


def test_of_several_paths_the_first_that_exists_is_used(write, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("CORPORA", str(tmp_path))
    path = write(GOOD + '[data]\ntrain = ["$CORPORA/a.txt", "$CORPORA/b.txt"]\n')
    assert load_config(path).data.train == f"{tmp_path}/a.txt"
    (tmp_path / "b.txt").touch()
    assert load_config(path).data.train == f"{tmp_path}/b.txt"
    with pytest.raises(InputError, match=r"data\.train"):
        load_config(write(GOOD + "[data]\ntrain = [1]\n"))


def test_paths_name_environment_variables(write, monkeypatch) -> None:
    path = write(GOOD + '[data]\ntrain = "$SOME_FOLDER/train.txt"\ndev = "$NOT_SET_ANYWHERE/dev.txt"\n')
    monkeypatch.setenv("SOME_FOLDER", "/corpora")
    data = load_config(path).data
    assert (data.train, data.dev, data.test) == ("/corpora/train.txt", "$NOT_SET_ANYWHERE/dev.txt", None)


def test_an_empty_path_takes_back_what_the_file_names(write) -> None:
    path = write('task = "ner"\nsystem = "unigram"\n[data]\ntrain = "a"\ndev = "b"\ntest = "c"\n')
    data = load_config(path, ["data.test=", "data.dev=''"]).data
    assert (data.train, data.dev, data.test) == ("a", None, None)


def test_a_configuration_survives_json_and_cannot_be_changed(write) -> None:
    config = load_config(write(GOOD + 'size = "S"\n[data]\ncolumn = "xpos"\nscheme = "bio2"\nformat = "columns"\n'))
    assert Config.model_validate_json(config.model_dump_json()) == config
    assert Config.model_validate(config.model_dump(mode="json")) == config
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 2


def test_lowercasing_is_the_datas_affair(write) -> None:
    sentence = Sentence(("Ab", "C"), ("X", "Y"))
    assert load_config(write(GOOD)).data.prepare(sentence) is sentence
    lowered = load_config(write(GOOD), ["data.lowercase=true"]).data.prepare(sentence)
    assert lowered == Sentence(("ab", "c"), ("X", "Y"))


def test_weights_are_the_systems_own_unless_given(write) -> None:
    config = load_config(write(GOOD), ["objective.posterior=0.25", "objective.encoder_auxiliary=0.5"])
    weights = config.weights
    assert (weights.denoising, weights.sequence, weights.posterior, weights.auxiliary) == (1, 0, 0.25, 0.5)


# What the files in configs/ say.

NAMES = config_names()
PRETRAINED = ("mpnet", "granite", "chinese-bert", "albert-tiny-chinese")
"""encoders of our own recipe"""


@pytest.mark.parametrize("name", NAMES)
def test_every_configuration_of_the_package_loads_and_says_what_its_name_says(name) -> None:
    config = load_config(name)
    *_, task, last = name.split("/")
    if last in SYSTEMS:
        assert config.system == last
    if task in TASKS:
        assert config.task == task
    assert load_config(CONFIGS / f"{name}.toml") == config  # the checkout's path, whether or not there is such a file


def test_there_is_a_configuration_for_every_system_and_task_of_every_recipe() -> None:
    recipes = ["", "ours/", "pretrained/", *(f"pretrained/ours/{encoder}/" for encoder in PRETRAINED)]
    expected = {f"{recipe}{task}/{system}" for recipe in recipes for task in TASKS for system in SYSTEMS}
    expected |= {"pos/quick", "ner/quick", "pos/cpu", "pos/cpu-student"}
    expected |= {f"demo/{system}" for system in ("diffusion-mf", "unigram", "lcrf")}
    expected |= {f"box/{name}" for name in ("en-pos", "en-pos-fast", "fr-pos", "zh-seg-pos", "en-ner")}
    assert set(NAMES) == expected


def test_the_papers_configurations_are_files_and_all_files_are_few() -> None:
    for task in TASKS:
        for system in SYSTEMS:
            assert (CONFIGS / task / f"{system}.toml").is_file()
    assert sum(path.is_file() for path in CONFIGS.rglob("*")) <= 70


PUBLISHED = {
    "denoiser.layers", "denoiser.heads", "structure.transitions", "structure.num_iterations",
    "objective.denoising", "objective.sequence", "objective.marginal", "objective.posterior",
}  # fmt: skip
"""paper: tables “Selected diffusion-denoiser settings” and “Training objectives”"""


@pytest.mark.parametrize("recipe", ["", "ours/", "pretrained/", "pretrained/ours/granite/"])
@pytest.mark.parametrize("task", TASKS)
def test_the_discrete_diffusion_systems_differ_only_where_the_papers_tables_do(recipe, task) -> None:
    systems = ("diffusion-uni", "diffusion-mf", "diffusion-lcrf")
    found = [_flat(load_config(f"{recipe}{task}/{system}").model_dump()) for system in systems]
    assert {key for key in found[0] if len({str(each[key]) for each in found}) > 1} <= {"system", *PUBLISHED}


@pytest.mark.parametrize("recipe", ["", "ours/", "pretrained/", "pretrained/ours/granite/"])
@pytest.mark.parametrize("task", TASKS)
def test_the_direct_systems_differ_only_in_size_and_structure(recipe, task) -> None:
    systems = ("unigram", "mean-field", "lcrf")
    found = [_flat(load_config(f"{recipe}{task}/{system}").model_dump()) for system in systems]
    differing = {key for key in found[0] if len({str(each[key]) for each in found}) > 1}
    sized = {"size", "encoder.width", "encoder.layers", "encoder.heads"} if not recipe else set()
    assert differing <= {"system", "structure.transitions", "structure.num_iterations", *sized}


def _flat(values, prefix=""):
    flat = {}
    for name, value in values.items():
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def selected(task: str, system: str) -> Config:
    return load_config(f"{task}/{system}")


@pytest.mark.parametrize(
    ("task", "layers", "heads", "num_iterations", "transitions", "posterior"),
    [
        ("pos", (8, 8, 8), (16, 16, 16), 15, "local", 0),
        ("ner", (12, 10, 8), (16, 16, 16), 5, "global", 0.1),
        ("seg-pos", (4, 4, 8), (8, 8, 16), 3, "global", 0.1),
        ("pretrained/pos", (8, 8, 8), (16, 16, 16), 15, "local", 0),
        ("pretrained/ner", (1, 4, 1), (16, 16, 16), 5, "global", 0),
        ("pretrained/seg-pos", (4, 4, 8), (8, 8, 16), 3, "global", 0.1),
    ],
)
def test_denoiser_settings_are_the_papers(task, layers, heads, num_iterations, transitions, posterior) -> None:
    """Paper: tables “Selected diffusion-denoiser settings” and “Training objectives”."""
    systems = ("diffusion-uni", "diffusion-mf", "diffusion-lcrf")
    configs = [selected(task, system) for system in systems]
    assert tuple(config.denoiser.layers for config in configs) == layers
    assert tuple(config.denoiser.heads for config in configs) == heads
    assert configs[1].structure.num_iterations == num_iterations
    assert [config.structure.transitions for config in configs[1:]] == [transitions] * 2
    assert [config.weights.posterior for config in configs] == [1, 1, posterior]
    for config in configs:
        assert config.diffusion.num_steps == 1000
        assert (config.inference.base, config.inference.num_calls) == (2, None)
        assert (config.training.optimizer, config.training.clip_norm) == ("adam", 1)
        assert config.training.patience > 0


@pytest.mark.parametrize(("task", "num_iterations"), [("pos", 10), ("ner", 5), ("seg-pos", 3)])
def test_the_direct_mean_field_system_has_the_papers_iterations(task, num_iterations) -> None:
    assert selected(task, "mean-field").structure.num_iterations == num_iterations


@pytest.mark.parametrize(
    ("task", "scale", "max_sentences", "learning_rate", "lowercase"),
    [("pos", 2, 32, 5e-5, True), ("ner", 0.1, 32, 5e-5, False), ("seg-pos", 0.1, 8, 1e-4, False)],
)
def test_diffusionsl_has_the_papers_whole_table(task, scale, max_sentences, learning_rate, lowercase) -> None:
    """Paper: table “Selected DiffusionSL settings”, and “Diffusion and optimisation”."""
    config = selected(task, "diffusionsl")
    training, bits = config.training, config.bits
    assert (config.denoiser.width, config.denoiser.layers) == (512, 6)
    assert (training.max_sentences, training.warmup_steps, training.weight_decay) == (max_sentences, 1000, 1e-4)
    assert (training.learning_rate, training.encoder_learning_rate) == (learning_rate, learning_rate)
    assert (bits.scale, bits.noise, bits.num_calls, bits.eta) == (scale, "linear", 10, 0)
    assert (bits.self_conditioning, bits.projection, bits.temperature) == (False, "native", 0.05)
    assert config.diffusion.num_steps == 1000
    assert config.data.lowercase is lowercase


@pytest.mark.parametrize(
    ("task", "model", "max_sentences", "rates", "weight_decay", "width"),
    [
        ("pos", "roberta-large", 32, (1e-5, 3e-5), 1e-4, 1024),
        ("ner", "bert-large-cased", 16, (1e-5, 1e-5), 1e-5, 1024),
        ("seg-pos", "hfl/chinese-roberta-wwm-ext", 8, (1e-5, 1e-5), 1e-5, 768),
    ],
)
def test_pretrained_settings_are_the_papers(task, model, max_sentences, rates, weight_decay, width) -> None:
    """Paper: “Architectures”, table “Selected DiffusionSL settings”, and the truncation under “Software”."""
    for system in SYSTEMS:
        encoder = selected(f"pretrained/{task}", system).encoder
        assert (encoder.kind, encoder.model) == ("pretrained", model)
        assert (encoder.on_long, encoder.truncate_units) == ("truncate", 256)
    config = selected(f"pretrained/{task}", "diffusionsl")
    training = config.training
    assert (config.denoiser.width, config.denoiser.layers) == (width, 6)
    assert (training.encoder_learning_rate, training.learning_rate) == rates
    assert (training.max_sentences, training.warmup_steps) == (max_sentences, 1000)
    assert training.weight_decay == weight_decay
    assert config.bits.scale == (2 if task == "pos" else 0.1)


# Sizes.

EWT = Vocabulary(
    form_counts={f"form{index}": 1 for index in range(19_674)},
    character_counts={f"character{index}": 1 for index in range(110)},
    labels=tuple(f"L{index:02}" for index in range(17)),
)


MILLIONS_OF_PARAMETERS = dict(zip(SIZES, (20, 40, 60, 80, 650), strict=True))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("system", SYSTEMS)
def test_presets_have_about_the_papers_parameters(system, size) -> None:
    config = Config.model_validate(
        {"task": "pos", "system": system, "size": size, "structure": {"transitions": "local"}}
    )
    count = count_parameters(config, EWT, config.task.scheme)
    assert count == pytest.approx(MILLIONS_OF_PARAMETERS[size] * 1e6, rel=0.05)


def test_conventional_systems_grow_the_encoder_and_diffusion_systems_the_denoiser() -> None:
    def sized(system, size):
        return Config.model_validate({"task": "pos", "system": system, "size": size})

    assert sized("lcrf", "S").encoder != sized("lcrf", "L").encoder
    assert sized("diffusion-mf", "S").encoder == sized("diffusion-mf", "L").encoder
    assert sized("diffusion-mf", "S").denoiser != sized("diffusion-mf", "L").denoiser


def test_a_setting_that_was_removed_is_told_with_its_line(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "old.toml"
    path.write_text('extends = "ner/diffusion-mf"\n[denoiser]\nlayers = 2\nstate_dropout = 0.0\n')
    with pytest.raises(InputError) as caught:
        load_config(path)
    assert str(caught.value) == (
        f"{path}, line 4: denoiser.state_dropout was removed: hiding states from the denoiser did not help; delete it."
    )
    with pytest.raises(InputError, match=r"denoiser\.state_dropout was removed"):
        load_config("ner/diffusion-mf", ["denoiser.state_dropout=0.1"])


def test_removed_settings_are_gone() -> None:
    for name in REMOVED:
        place: Any = Config
        *sections, key = name.split(".")
        for section in sections:
            place = place.model_fields[section].annotation
        assert key not in place.model_fields
