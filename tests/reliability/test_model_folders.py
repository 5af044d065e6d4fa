"""A model that is loaded is the one that was saved, and anything else is refused in one sentence."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import threading
import zipfile
from pathlib import Path

import pytest
import torch
from child_processes import holds_in_child
from safetensors.torch import load_file, save_file
from small_models import correct_checksums, refusal, small_model, small_tagger, write_model

from diffusion_mf.data.formats import read_json_lines
from diffusion_mf.errors import DiffusionMFError, InputError
from diffusion_mf.model import storage
from diffusion_mf.model.storage import load_model, read_config, read_metrics, save_model
from diffusion_mf.tagger import Tagger
from diffusion_mf.tagger.files import _json_line

SENTENCES = [["Ada", "Byron", "sings"], ["unseen", "Ada", "in", "Oslo", "☃"]]


def labels_and_scores(tagger: Tagger) -> list[tuple[list[str], list[float]]]:
    return [(list(result.labels), list(result.scores)) for result in tagger.tag(SENTENCES)]


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


class TestManifest:
    def test_it_lists_every_file_that_is_loaded(self, folder: Path) -> None:
        listed = json.loads((folder / "manifest.json").read_text())["files"]
        assert set(listed) == {"config.json", "vocabulary.json", "model.safetensors", "metrics.json"}
        assert all(entry["bytes"] == (folder / name).stat().st_size for name, entry in listed.items())

    @pytest.mark.parametrize(
        ("before", "after"), [('"temperature": 1.5', '"temperature": 2.5'), ('"num_steps": 1000', '"num_steps": 1001')]
    )
    def test_an_edited_configuration_is_refused_until_it_is_accepted(
        self, folder: Path, before: str, after: str
    ) -> None:
        edit(folder / "config.json", before, after)
        message = refusal(folder)
        assert message == (
            f"{folder / 'config.json'}: damaged or changed since it was saved; copy the model again, or delete "
            "manifest.json if you changed it on purpose."
        )
        with pytest.raises(InputError, match="damaged or changed"):
            read_config(folder)
        (folder / "manifest.json").unlink()
        load_model(folder)

    def test_edited_metrics_are_refused_and_missing_ones_are_not(self, folder: Path) -> None:
        edit(folder / "metrics.json", "12.5", "92.5")
        assert "metrics.json: damaged or changed" in refusal(folder)
        with pytest.raises(InputError, match="damaged or changed"):
            read_metrics(folder)
        (folder / "metrics.json").unlink()
        assert load_model(folder).metrics == {}

    def test_folders_of_earlier_versions_load_with_the_checks_they_have(self, folder: Path) -> None:
        expected = labels_and_scores(Tagger.load(folder, device="cpu"))
        (folder / "manifest.json").unlink()
        assert labels_and_scores(Tagger.load(folder, device="cpu")) == expected
        edit(folder / "vocabulary.json", "Oslo", "oslO")
        assert "vocabulary.json: damaged or changed" in refusal(folder)

    @pytest.mark.parametrize(
        "text", ["", "[]", "{}", '{"files": []}', '{"files": {}}', '{"files": {"config.json": 3}}']
    )
    def test_a_manifest_that_is_none(self, folder: Path, text: str) -> None:
        (folder / "manifest.json").write_text(text)
        assert refusal(folder)

    @pytest.mark.parametrize("name", ["metrics.jsom", "../other", "encoder/../../other"])
    def test_a_manifest_with_unknown_names(self, folder: Path, name: str) -> None:
        edit(folder / "manifest.json", '"metrics.json"', json.dumps(name))
        assert refusal(folder)

    def test_the_card_says_so(self, folder: Path) -> None:
        assert "`manifest.json` holds the SHA-256 checksum of every file that is loaded" in (
            folder / "README.md"
        ).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["config.json", "vocabulary.json", "metrics.json", "manifest.json"])
def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path: Path, name: str) -> None:
    """Every byte of every small file, one bit each; `make torture` flips all eight."""
    folder = write_model(tmp_path / "model")
    original = (folder / name).read_bytes()
    expected = storage._read_files(folder)
    expected.pop(name, None)
    for position in range(len(original)):
        damaged = bytearray(original)
        damaged[position] ^= 1 << (position % 8)
        (folder / name).write_bytes(damaged)
        try:
            found = storage._read_files(folder)
        except InputError:
            continue
        # Only what is between the values of the manifest may differ: all else is as it was.
        assert name == "manifest.json"
        assert {key: found[key] for key in expected} == expected


class TestTensors:
    @staticmethod
    def _replace(folder: Path, **changes: torch.Tensor) -> None:
        """Other weights, with the checksums of a model that was saved so."""
        weights = load_file(folder / "model.safetensors")
        name = next(name for name, tensor in weights.items() if tensor.ndim == 2)
        weights[name] = changes["to"].expand(weights[name].shape).contiguous()
        save_file(weights, folder / "model.safetensors")
        correct_checksums(folder)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_numbers_that_are_not_finite_are_refused(self, folder: Path, value: float) -> None:
        self._replace(folder, to=torch.tensor(value))
        assert "holds numbers that are not finite; train the model again." in refusal(folder)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32, torch.float8_e4m3fn])
    def test_other_types_are_refused(self, folder: Path, dtype: torch.dtype) -> None:
        self._replace(folder, to=torch.ones((), dtype=dtype))
        assert f"has the type {dtype}, not torch.float32" in refusal(folder)


@pytest.mark.parametrize("value", ["0", "1e-3", "1e300", "1e999", "-1", f"1{'0' * 400}", "true"])
def test_temperatures_beyond_reason_are_refusal(folder: Path, value: str) -> None:
    (folder / "manifest.json").unlink()
    edit(folder / "config.json", '"temperature": 1.5', f'"temperature": {value}')
    assert "temperature" in refusal(folder)


def test_labels_of_another_scheme_are_refusal(folder: Path) -> None:
    edit(folder / "vocabulary.json", "M-ORG", "MM-ORG")
    correct_checksums(folder)
    assert "the configuration and the vocabulary do not fit each other (label 'MM-ORG'" in refusal(folder)


def test_loading_asks_for_as_much_memory_as_the_files_need(folder: Path) -> None:
    """As many bytes are allocated as are asked for, which limits of the operating system count."""
    limit = (3 << 30) + int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    assert holds_in_child(
        lambda: bool(load_model(folder)), lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    )


def test_loading_needs_no_place_to_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.tempfile, "tempdir", "/nowhere")
    assert load_model(folder)


def test_hostile_archives_are_refusal(folder: Path) -> None:
    def archive(name: str, **options: int) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as written:
            for path in folder.iterdir():
                if path.name != name:
                    written.write(path, path.name)
            written.writestr(name, bytes(10**6), **options)
        return buffer.getvalue()

    for data in (
        archive("metrics.json", compress_type=zipfile.ZIP_DEFLATED),
        archive("../config.json"),
        archive("/etc/passwd"),
        archive("encoder/../../x"),
        archive("x" * 5000),
        b"",
        b"PK",
    ):
        with pytest.raises(InputError) as caught:
            Tagger.from_bytes(data, device="cpu")
        assert len(str(caught.value)) < 300


class TestJson:
    def test_output_is_json_or_an_error(self) -> None:
        with pytest.raises(DiffusionMFError, match="scores that are not numbers, which JSON cannot hold"):
            _json_line({"scores": [float("nan")]})

    @pytest.mark.parametrize("constant", ["NaN", "-Infinity"])
    def test_input_that_is_not_json_is_refused(self, tmp_path: Path, constant: str) -> None:
        path = tmp_path / "in.jsonl"
        path.write_text(f'{{"units": ["a"], "score": {constant}}}\n')
        with pytest.raises(InputError, match=rf"line 1: not JSON \({constant} is not a number of JSON\)"):
            list(read_json_lines(path))


class TestNoRegularFile:
    """None of these may block, or be read."""

    NAMES = ("config.json", "vocabulary.json", "model.safetensors", "metrics.json", "manifest.json")

    @pytest.mark.parametrize("has_manifest", [True, False])
    @pytest.mark.parametrize("name", NAMES)
    def test_pipes_devices_and_folders(self, folder: Path, name: str, has_manifest: bool) -> None:
        path = folder / name
        if not has_manifest:
            (folder / "manifest.json").unlink()
        for make in (lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero"), path.mkdir):
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
            make()
            assert str(path) in refusal(folder)

    @pytest.mark.parametrize("name", NAMES)
    def test_huge_files_are_not_read(self, folder: Path, name: str) -> None:
        os.truncate(folder / name, 20 * 10**9)
        assert f"{name}: has 20,000,000,000 bytes, but may have" in refusal(folder)

    def test_sizes_are_compared_before_reading(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        os.truncate(folder / "model.safetensors", 10 * 10**9)
        monkeypatch.setattr(storage.hashlib, "sha256", _only_small(storage.hashlib.sha256))
        assert "model.safetensors: damaged or changed" in refusal(folder)


def _only_small(function):  # type: ignore[no-untyped-def]
    def call(content: bytes = b""):  # type: ignore[no-untyped-def]
        assert len(content) < 10**8
        return function(content)

    return call


class TestLinks:
    def test_a_link_out_of_the_folder_is_refused(self, folder: Path, tmp_path: Path) -> None:
        for name in ("metrics.json", "model.safetensors"):
            shutil.move(folder / name, tmp_path / name)
            (folder / name).symlink_to(tmp_path / name)
            assert f"{name}: a link to a file outside of the model folder; put the file in its place." in refusal(
                folder
            )

    def test_links_inside_of_it_and_to_it_are_not(self, folder: Path, tmp_path: Path) -> None:
        expected = labels_and_scores(Tagger.load(folder, device="cpu"))
        (folder / "model.safetensors").rename(folder / "weights")
        (folder / "model.safetensors").symlink_to("weights")
        (tmp_path / "best").symlink_to(folder)
        assert labels_and_scores(Tagger.load(tmp_path / "best", device="cpu")) == expected

    def test_a_snapshot_of_the_hub_links_to_its_blobs(self, folder: Path, tmp_path: Path) -> None:
        expected = labels_and_scores(Tagger.load(folder, device="cpu"))
        snapshot = tmp_path / "hub" / "models--owner--name" / "snapshots" / "0123abcd"
        blobs = snapshot.parent.parent / "blobs"
        snapshot.mkdir(parents=True)
        blobs.mkdir()
        for number, path in enumerate(folder.iterdir()):
            path.rename(blobs / f"{number:040x}")
            (snapshot / path.name).symlink_to(f"../../blobs/{number:040x}")
        assert labels_and_scores(Tagger.load(snapshot, device="cpu")) == expected
        # What only looks like one is no exception.
        target = (snapshot / "metrics.json").resolve()
        target.rename(tmp_path / "elsewhere")
        target.symlink_to(tmp_path / "elsewhere")
        assert "a link to a file outside" in refusal(snapshot)


def test_loading_while_saving_never_mixes_two_models(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    models = [small_model(seed=seed, temperature=float(seed)) for seed in (1, 2)]
    expected = {model.temperature: model.labeller.state_dict() for model in models}
    save_model(folder, models[0])
    is_over = threading.Event()
    failures: list[BaseException] = []

    def save() -> None:
        try:
            while not is_over.is_set():
                for model in models:
                    save_model(folder, model)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=save)
    thread.start()
    try:
        seen = set()
        for _ in range(40):
            loaded = load_model(folder)
            weights = expected[loaded.temperature]
            state = loaded.labeller.state_dict()
            assert all(torch.equal(state[name], weights[name]) for name in weights)
            seen.add(loaded.temperature)
    finally:
        is_over.set()
        thread.join()
    assert not failures
    assert seen == {1.0, 2.0}


def test_a_save_between_two_files_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The moment at which weights of a new model could meet the temperature of the old one, exactly."""
    folder = write_model(tmp_path / "model", seed=1, temperature=1.0)
    read = storage._Reader.read
    has_saved = False

    def save_before_weights(self: storage._Reader, name: str, *arguments: object) -> bytes:
        nonlocal has_saved
        if name == "model.safetensors" and not has_saved:
            has_saved = True
            write_model(folder, seed=2, temperature=2.0)
        return read(self, name, *arguments)

    monkeypatch.setattr(storage._Reader, "read", save_before_weights)
    loaded = load_model(folder)
    assert loaded.temperature == 2.0
    assert labels_and_scores(Tagger(loaded, device="cpu")) == labels_and_scores(small_tagger(seed=2, temperature=2.0))
