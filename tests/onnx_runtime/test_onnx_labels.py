"""An exported model gives the labels of `Tagger`, and what it cannot give it refuses."""

from __future__ import annotations

import json
import pathlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from command_line import dmf as dmf
from small_models import WORDS, small_model, write_model
from tiny_encoders import write_encoder

from diffusion_mf.data.corpus import Task
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.errors import InputError
from diffusion_mf.model.storage import StoredModel, load_model
from diffusion_mf.systems import SYSTEMS
from diffusion_mf.tagger import Tagger
from diffusion_mf.tagger.shipped import shipped_models

pytest.importorskip("onnx.defs", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

from diffusion_mf import onnx
from diffusion_mf.onnx.export import export_model

ENCODERS: dict[str, dict[str, Any]] = {
    "scratch": {"kind": "scratch", "layers": 2, "pair_width": 4},
    "window": {"kind": "window", "affix_width": 6, "pair_width": 4},
    "features": {"kind": "window", "affix_width": 6, "features": True},
    "features alone": {"kind": "window", "features": True, "word_width": 0, "character_hidden": 0},
    "window without characters": {"kind": "window", "character_hidden": 0},
}
SMALL = {"width": 16, "heads": 2, "layers": 1, "word_width": 8, "character_width": 4, "character_hidden": 4}
TASK_OF = dict(
    zip(SYSTEMS, [Task.POS, Task.NER, Task.SEG_POS, Task.POS, Task.NER, Task.SEG_POS, Task.POS], strict=True)
)
"""not spans for DiffusionSL: with random weights its bits are mostly at the ends of their range, and legal sequences tie"""


def settings_of(encoder: str = "scratch", transitions: str = "global", **sections: Any) -> dict[str, Any]:
    return {
        "encoder": SMALL | ENCODERS[encoder],
        "structure": {"transitions": transitions, "scorer_width": 16},
        # Random weights amplify the last bit with every call.
        "inference": {"num_calls": 4},
        **sections,
    }


def sentences_of(task: Task, *, seed: int = 0) -> list[list[str]]:
    """Of 0 to 12 units, known, unknown, long and of characters never seen."""
    generator = random.Random(seed)
    words = [word.rsplit("/", 1)[0] for word in WORDS[task].split()] + ["Ozlo", "toro-vi", "x9", "ß", "sel" * 11]
    return [[generator.choice(words) for _ in range(generator.randint(1, 12))] for _ in range(30)] + [[], ["Lanu"]]


def exported(model: StoredModel, folder: pathlib.Path, **options: Any) -> onnx.Tagger:
    export_model(model, folder / "exported", **options)
    return onnx.Tagger.load(folder / "exported", threads=1)


def check_same(model: StoredModel, tagger: onnx.Tagger, sentences: Sequence[Sequence[str]], **options: Any) -> None:
    expected = Tagger(model, device="cpu").tag(sentences, **options)
    for wanted, found in zip(expected, tagger.tag(sentences), strict=True):
        assert found.units == wanted.units
        assert found.labels == wanted.labels
        assert found.scores == pytest.approx(wanted.scores, abs=2e-3)
        assert [span[:3] for span in found.spans] == [span[:3] for span in wanted.spans]
        if not model.config.system.endswith("lcrf"):  # the runtime estimates what a chain knows exactly
            assert [span[3] for span in found.spans] == pytest.approx([span[3] for span in wanted.spans], abs=2e-3)


@pytest.mark.parametrize(("encoder", "transitions"), [("scratch", "global"), ("window", "local")])
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_gives_the_labels_of_the_tagger(
    system: str, encoder: str, transitions: str, tmp_path: pathlib.Path
) -> None:
    model = small_model(system, TASK_OF[system], settings=settings_of(encoder, transitions), seed=3)
    # Of characters, a string is a sentence.
    more = ["abczgfed"] if TASK_OF[system] is Task.SEG_POS else []
    tagger = exported(model, tmp_path)
    check_same(model, tagger, [*sentences_of(TASK_OF[system]), *more])
    check_same(model, tagger, [["Lanu"]])  # a batch without pairs of neighbours


@pytest.mark.parametrize("encoder", ["features", "features alone"])
@pytest.mark.parametrize("system", ["mean-field", "diffusion-mf"])
def test_features_give_the_labels_of_the_tagger(system: str, encoder: str, tmp_path: pathlib.Path) -> None:
    test_every_system_gives_the_labels_of_the_tagger(system, encoder, "global", tmp_path)


@pytest.mark.parametrize("scheme", [LabelScheme.IOB1, LabelScheme.BIO2, LabelScheme.BILOU])
def test_labels_and_scores_are_in_the_scheme_of_the_training_data(scheme: LabelScheme, tmp_path: pathlib.Path) -> None:
    settings = settings_of("window without characters", data={"lowercase": True})
    model = small_model(
        "lcrf", settings=settings, source_scheme=scheme, has_complete_labels=True, decoder="mask-viterbi", seed=3
    )
    tagger = exported(model, tmp_path)
    assert set(tagger.labels) == set(Tagger(model, device="cpu").labels)
    check_same(model, tagger, sentences_of(Task.NER))


@pytest.mark.parametrize("name", shipped_models())
def test_models_of_the_package_give_their_labels(name: str, tmp_path: pathlib.Path) -> None:
    """Handles and links included, which en-ner sees in another form."""
    model = load_model(shipped_models()[name])
    texts = (
        "Thanks @ada for www.a.org, from @ bob! Angela Merkel visited Paris.",
        "L'ami de Zoé n'est pas là.",
        "我在北京。",
    )
    tagger = Tagger(model, device="cpu")
    check_same(model, exported(model, tmp_path), [result.units for text in texts for result in tagger.tag_text(text)])


@pytest.mark.parametrize(
    ("system", "decoder", "sections"),
    [
        ("mean-field", "viterbi", {}),
        ("diffusion-mf", "argmax", {"inference": {"posterior": "mixture", "scores_from": "first"}}),
        ("diffusion-lcrf", "mask-viterbi", {"denoiser": {"width": 16, "heads": 2, "layers": 1, "state_input": True}}),
        ("diffusion-mf", "mask-viterbi", {"denoiser": {"width": 16, "heads": 2, "layers": 1, "state_scores": True}}),
        ("diffusion-lcrf", "viterbi", {"denoiser": {"width": 16, "heads": 2, "layers": 1, "state_scores": True}}),
        ("diffusionsl", "native", {"bits": {"self_conditioning": True, "eta": 0.5, "num_samples": 2}}),
    ],
)
def test_settings_of_inference_are_exported(
    system: str, decoder: str, sections: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    model = small_model(system, settings=settings_of(**sections), temperature=1.0, seed=3)
    calls = 3 if SYSTEMS[system].is_diffusion else None
    tagger = exported(model, tmp_path, num_calls=calls, decoder=decoder)
    check_same(model, tagger, sentences_of(Task.NER), calls=calls, decoder=decoder)


def test_sentences_of_any_length_and_order_are_labelled(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model("lcrf", settings=settings_of("window", "local"))
    tagger = exported(model, tmp_path)
    sentences = [["Ada"], ["Ada", "Byron"] * 700, [], *sentences_of(Task.NER, seed=1)]
    whole = [result.labels for result in tagger.tag(sentences)]
    monkeypatch.setattr("diffusion_mf.onnx.tagger.MAX_WINDOW_ITEMS", 2)
    monkeypatch.setattr("diffusion_mf.onnx.words.MOST_WORDS", 3)  # so that words are forgotten in between
    assert [result.labels for result in tagger.stream(iter(sentences))] == whole
    check_same(model, tagger, sentences)


def test_the_command_exports_a_model(dmf: Callable, tmp_path: pathlib.Path) -> None:
    folder = write_model(tmp_path / "model", seed=5)
    outcome = dmf("export", folder, "--to", "onnx", tmp_path / "exported", "--calls", 2, "--json")
    assert outcome.status == 0, outcome.stderr
    assert set(json.loads(outcome.stdout)["files"]) == {
        "arrays.npz", "encoder.onnx", "manifest.json", "step.onnx", "vocabulary.json", "words.onnx"
    }  # fmt: skip
    sentences = sentences_of(Task.NER)
    expected = Tagger.load(folder, device="cpu").tag(sentences, calls=2)
    found = onnx.Tagger.load(tmp_path / "exported").tag(sentences)
    assert [each.labels for each in found] == [each.labels for each in expected]
    # An export takes the place of an export, and of nothing else.
    assert dmf("export", folder, tmp_path / "exported").status == 0
    outcome = dmf("export", folder, folder)
    assert (outcome.status, "contains other files" in outcome.stderr) == (2, True)


@pytest.mark.parametrize(
    ("system", "sections", "options", "message"),
    [
        ("diffusion-mf", {"denoiser": {"width": 16, "heads": 2, "layers": 1, "recall": 2}}, {}, "a model with recall"),
        ("unigram", {"encoder": SMALL | {"recall": 2}}, {}, "a model with recall"),
        ("diffusion-mf", {"inference": {"posterior": "sampled"}}, {}, "sampled labels"),
        ("unigram", {}, {"decoder": "viterbi"}, "the system unigram has no decoder viterbi"),
        ("unigram", {}, {"decoder": "magic"}, "no decoder is called 'magic'"),
        ("lcrf", {}, {"num_calls": 3}, "the system lcrf makes one call"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    system: str, sections: dict[str, Any], options: dict[str, Any], message: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(InputError, match=message):
        exported(small_model(system, settings=settings_of() | sections), tmp_path, **options)
    assert not (tmp_path / "exported").exists()


def test_a_pretrained_encoder_is_refused(tmp_path: pathlib.Path) -> None:
    folder = write_encoder(tmp_path / "tiny")
    model = small_model("unigram", settings={"encoder": {"kind": "pretrained", "model": str(folder)}})
    with pytest.raises(InputError, match="the encoder tiny cannot be exported to ONNX; choose one with the encoder"):
        export_model(model, tmp_path / "exported")


def test_bad_input_and_damaged_folders_are_errors(tmp_path: pathlib.Path) -> None:
    tagger = exported(small_model("unigram"), tmp_path)
    for sentences, message in [
        (["Ada Byron"], "sentence 1 is a string"),
        ([["Ada"], ["Ada", ""]], "unit 1 of sentence 2 is ''"),
        ([["Ada", 3]], "unit 1 of sentence 1 is 3"),
        ([["Ada"] * 2049], "sentence 1 has more than 2,048 units"),
    ]:
        with pytest.raises(InputError, match=message):
            tagger.tag(sentences)  # type: ignore[arg-type]
    folder = tmp_path / "exported"
    with pytest.raises(InputError, match="not an exported model"):
        onnx.Tagger.load(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"format_version": 99}))
    with pytest.raises(InputError, match="in another format"):
        onnx.Tagger.load(folder)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with (folder / "words.onnx").open("ab") as stream:
        stream.write(b"\0")
    with pytest.raises(InputError, match=r"words\.onnx: damaged or changed"):
        onnx.Tagger.load(folder)
    (folder / "words.onnx").unlink()
    with pytest.raises(InputError, match=r"words\.onnx: cannot be read"):
        onnx.Tagger.load(folder)
    (folder / "manifest.json").write_text("[]")
    with pytest.raises(InputError, match="not the manifest"):
        onnx.Tagger.load(folder)
