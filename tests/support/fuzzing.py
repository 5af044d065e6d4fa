"""Inputs made from good ones by small damage, for everything that reads what users give.

A case is fine if the input is accepted, or refused in one sentence, within `MOST_SECONDS`. `FUZZERS` has one entry per promise; each
turns a folder and the seeds of its cases into outcomes. A failure is printed with its seed: ``list(readers(folder, [seed]))`` tries that
case again.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import itertools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from small_models import small_tagger, write_model

from diffusion_mf.config import Config, load_config, saved_config
from diffusion_mf.data.check import check_files
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.detection import detect
from diffusion_mf.data.files import FieldChoice
from diffusion_mf.data.formats import FileFormat, FormatOptions, read_source, read_task
from diffusion_mf.data.label_schemes import LabelScheme
from diffusion_mf.data.repair import Repairs
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import DiffusionMFError
from diffusion_mf.evaluation.paired_files import score_files
from diffusion_mf.model.storage import pack_folder
from diffusion_mf.tagger import Tagger
from diffusion_mf.tagger.files import TaggingOptions, tag_file

MOST_SECONDS = 5.0
"""of processor time"""
SECONDS_UNTIL_ALARM = 30.0
"""after which a case is stopped: more than `MOST_SECONDS`, because other processes may need the processor, too"""
LONGEST_MESSAGE = 1000
MOST_SHOWN = 20
"""failures whose traceback is printed"""

_ROW = "\t".join(["_"] * 5)
SEEDS: dict[FileFormat, list[str]] = {
    FileFormat.CONLLU: [
        f"# newdoc\n# text = Ada sings\n1\tAda\tAda\tPROPN\tNNP\t{_ROW}\n2\tsings\tsing\tVERB\tVBZ\t{_ROW}\n\n"
        f"1-2\tdu\t_\t_\t_\t{_ROW}\n1\tde\t_\tADP\tIN\t{_ROW}\n2\tle\t_\tDET\tDT\t{_ROW}\n2.1\tx\t_\tX\tX\t{_ROW}\n\n",
    ],
    FileFormat.COLUMNS: [
        "-DOCSTART- O\n\nAda B-PER\nByron I-PER\nsings O\n\nin O\nOslo B-LOC\n",
        "Ada\tB-PER\nByron\tE-PER\n\nOslo\tS-LOC\nthe\tB-ORG\nroyal\tM-ORG\nchoir\tE-ORG\n",
        "form\tclamp\ttag\nAda\t*\tI-PER\nin\tO\tO\n",
    ],
    FileFormat.JSONL: [
        '{"units": ["Ada", "sings"], "labels": ["S-PER", "O"], "document": 1}\n'
        '{"units": ["in", "Oslo"], "labels": ["O", "S-LOC"], "clamp": {"1": ["S-LOC", "O"]}}\n',
        '{"units": ["Ada", "Byron"], "clamp": [{"units": [0, 2], "type": "PER"}]}\n',
    ],
    FileFormat.HUGGING_FACE: [
        '{"tokens": ["Ada", "sings"], "ner_tags": [1, 0], "label_names": ["O", "B-PER"]}\n',
        '{"tokens": ["Ada", "sings"], "pos_tags": ["PROPN", "VERB"]}\n',
    ],
    FileFormat.DOCCANO: ['{"text": "Ada sings. In Oslo!", "label": [[0, 3, "PER"], [14, 18, "LOC"]], "id": 7}\n'],
    FileFormat.PRODIGY: [
        '{"text": "Ada sings.", "spans": [{"start": 0, "end": 3, "label": "PER"}], "answer": "accept", '
        '"tokens": [{"text": "Ada", "start": 0, "end": 3, "id": 0}, {"text": "sings.", "start": 4, "end": 10, "id": 1}]}\n'
    ],
    FileFormat.LABEL_STUDIO: [
        '[{"id": 1, "data": {"text": "Ada sings."}, "annotations": [{"result": [{"type": "labels", "from_name": "label", '
        '"to_name": "text", "value": {"start": 0, "end": 3, "text": "Ada", "labels": ["PER"]}}]}]}]\n'
    ],
    FileFormat.BRAT: ["T1\tPER 0 3\tAda\nT2\tLOC 14 18;19 20\tOslo !\nR1\tin Arg1:T1 Arg2:T2\n#1\tNote T1\tx\n"],
    FileFormat.RAW: ["Dr. Ada sings, doesn't she? See www.a.org/b\n\nIn Oslo at 10:30 :-) ada@mail.org 中文。\n"],
    FileFormat.TEXT: ["Ada sings\nin Oslo .\n"],
}
BRAT_TEXT = "Ada sings. In Oslo!\n"

CONFIGURATIONS = [
    'task = "ner"\nsystem = "diffusion-mf"\nseed = 3\n[encoder]\nwidth = 16\nlayers = 1\ndropout = 0.1\n[training]\nepochs = 2\n',
    'extends = "ner/diffusion-mf"\nsize = "S"\n[data]\ntrain = "a.txt"\nscheme = "bio2"\n[inference]\nnum_calls = 5\n',
    '[system.lcrf.structure]\ntransitions = "global"\n[training]\nlearning_rate = 1e-3\nbudget = 4000\n[bits]\nscale = 2.0\n',
]
OVERRIDES = ["training.epochs=3", "encoder={width=16, heads=2}", "data.train=a.txt", "seed=1", "size=S", "system=lcrf"]

TOKENS = [
    b"\0", b"\r", b"\r\n", b"\n\n", b"\t", b"  ", b"\xef\xbb\xbf", b"\xff", b"\xed\xa0\x80", b"\xf0\x9f", b"\xe2\x80\xa8",
    b"\\ud800", b"\\u0000", b'"', b"'", b"\\", b"{", b"}", b"[", b"]", b",", b":", b";", b"=", b"#", b"-", b"_", b"*", b"B-", b"I-",
    b"E-PER", b"O", b"O\n", b"NaN", b"-Infinity", b"1e999", b"-1", b"0", b"1.5", b"true", b"null", b"[]", b"{}", b'""', b"1979-05-27",
    b"-DOCSTART- O\n", b"# newdoc\n", b"9" * 30, b"9" * 5000, b"[" * 3000, b'{"a":' * 1500, b"x" * 3000, b"a." * 1500, b"inf", b"0x1f",
]  # fmt: skip


def damaged(good: bytes, generator: Random) -> bytes:
    """``good`` after one to four changes: bits, slices, lines, and tokens that readers treat specially."""
    data = good
    for _ in range(generator.choice((1, 1, 1, 2, 2, 4))):
        size = len(data)
        begin = generator.randrange(size + 1)
        end = min(size, begin + generator.choice((1, 1, 2, 5, 20)))
        kind = generator.randrange(8)
        if kind == 0 and size:
            position = generator.randrange(size)
            data = data[:position] + bytes((data[position] ^ 1 << generator.randrange(8),)) + data[position + 1 :]
        elif kind == 1:
            data = data[:begin] + data[end:]
        elif kind == 2:
            data = data[:end] + data[begin:end] * generator.choice((1, 1, 3, 100)) + data[end:]
        elif kind == 3:
            data = data[:begin]
        elif kind == 4:
            lines = data.split(b"\n")
            generator.shuffle(lines)
            data = b"\n".join(lines)
        else:
            data = data[:begin] + generator.choice(TOKENS) + data[begin if kind < 7 else end :]
    return data


_num_shown = 0


class CaseTimeout(BaseException):
    """A case did not end; not an `Exception`, which the code that is tried could catch."""


def _stop(number: int, frame: object) -> None:
    raise CaseTimeout


def is_fine(call: Callable[[], object], seed: int, case: object) -> bool:
    """Whether ``call`` succeeds or raises one of our errors, whose message is one short sentence, soon enough."""
    global _num_shown
    before = signal.signal(signal.SIGALRM, _stop)
    start = time.process_time()
    try:
        signal.setitimer(signal.ITIMER_REAL, SECONDS_UNTIL_ALARM)
        call()
        problem = ""
    except DiffusionMFError as error:
        message = str(error)
        problem = "" if "\n" not in message and len(message) < LONGEST_MESSAGE else f"the message {message[:1000]!r}"
    except (Exception, CaseTimeout):
        problem = traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if not problem and time.process_time() - start > MOST_SECONDS:
        problem = f"took {time.process_time() - start:.0f} seconds"
    if problem and _num_shown < MOST_SHOWN:
        _num_shown += 1
        print(f"the case with the seed {seed}:", file=sys.stderr)
        with contextlib.suppress(ValueError, RecursionError):  # numbers of thousands of digits have no repr
            print(repr(case)[:3000], file=sys.stderr)
        print(problem, file=sys.stderr, flush=True)
    return not problem


def _write(folder: Path, file_format: FileFormat, generator: Random, *, name: str = "in") -> tuple[Path, bytes]:
    """A damaged file of a format: usually under its name, sometimes compressed or under another one."""
    data = damaged(generator.choice(SEEDS[file_format]).encode(), generator)
    if file_format is FileFormat.BRAT:
        (folder / "brat.txt").write_text(BRAT_TEXT)
        path = folder / "brat.ann"
    else:
        path = (
            folder
            / f"{name}{generator.choice(('', '', '', '.txt', '.conllu', '.jsonl', '.json', '.gz', '.xz', '.zst'))}"
        )
        if path.suffix == ".gz":
            data = gzip.compress(data, 1)
            data = data if generator.random() < 0.5 else damaged(data, generator)
    path.write_bytes(data)
    return path, data


def _fields(generator: Random) -> FieldChoice:
    if generator.random() < 0.7:
        return FieldChoice()
    names = (None, None, "1", "2", "-1", "0", "9" * 5000, "x", "form", "tag", "ner_tags", "")
    column, tag, clamp = (generator.choice(names) for _ in range(3))
    labels = generator.choice((None, (), ("O", "B-PER"), ("O", "")))
    return FieldChoice(column, tag, labels, generator.choice((None, "en", "fr", "??")), clamp)


_TASKS, _FORMATS, _SCHEMES = [*Task], [*SEEDS], [None, None, None, *LabelScheme]


def _read(path: Path, file_format: FileFormat, generator: Random) -> None:
    fields, task, scheme = _fields(generator), generator.choice(_TASKS), generator.choice(_SCHEMES)
    named = file_format if generator.random() < 0.7 else None
    match generator.randrange(5):
        case 0:
            read_task(path, task, scheme=scheme, file_format=named, fields=fields, strict=generator.random() < 0.3)
        case 1:
            check_files([(path, None)], file_format=named, fields=fields)
        case 2:
            detect(path, file_format=named, fields=fields)
        case _:
            options = FormatOptions(fields=fields, task=task)
            repairs = Repairs(path) if generator.random() < 0.5 else None
            for _ in read_source(path, file_format, options, repairs=repairs).sentences:
                pass


def readers(folder: Path, seeds: Iterable[int]) -> Iterator[bool]:
    for seed in seeds:
        generator = Random(seed)
        file_format = generator.choice(_FORMATS)
        path, data = _write(folder, file_format, generator)
        yield is_fine(lambda: _read(path, file_format, generator), seed, (path.name, file_format, data))  # noqa: B023


def scorer(folder: Path, seeds: Iterable[int]) -> Iterator[bool]:
    formats = [FileFormat.CONLLU, FileFormat.COLUMNS, FileFormat.JSONL]
    for seed in seeds:
        generator = Random(seed)
        file_format, task = generator.choice(formats), generator.choice(_TASKS)
        gold = folder / "gold"
        gold.write_text(generator.choice(SEEDS[file_format]))
        predicted, data = _write(folder, file_format, generator, name="predicted")
        paths = [gold, predicted]
        generator.shuffle(paths)
        options: dict[str, Any] = {"scheme": generator.choice(_SCHEMES), "strict": generator.random() < 0.3}
        named = file_format if generator.random() < 0.8 else None
        call = lambda: score_files(*paths, task, file_format=named, **options)  # noqa: E731, B023
        yield is_fine(call, seed, (paths, task, options, data))


def configurations(folder: Path, seeds: Iterable[int]) -> Iterator[bool]:
    saved = Config.model_validate({"task": "ner", "system": "diffusion-mf"}).model_dump(mode="json")
    good = json.dumps(saved).encode()
    path = folder / "a.toml"
    for seed in seeds:
        generator = Random(seed)
        kind = generator.randrange(3)
        if kind == 0:
            path.write_bytes(data := damaged(generator.choice(CONFIGURATIONS).encode(), generator))
            call: Callable[[], object] = lambda: load_config(path)  # noqa: E731
        elif kind == 1:
            data = damaged(generator.choice(OVERRIDES).encode(), generator)
            given = os.fsdecode(data)
            call = lambda: load_config("ner/diffusion-mf", [given])  # noqa: E731, B023
        else:
            data = damaged(good, generator)
            try:
                values = json.loads(data)
            except (ValueError, RecursionError):
                values = {**saved, generator.choice([*saved]): ODD[generator.randrange(len(ODD))]}
            if not isinstance(values, dict):
                continue  # the reader of the file refuses it
            call = lambda: saved_config(values, path=path, is_trained=True)  # noqa: E731, B023
        yield is_fine(call, seed, data)


class Odd:
    """Something without any of the methods that are asked for."""


ODD: list[Any] = [
    None, True, False, 0, 1, 2, -1, 1.5, float("nan"), float("inf"), -0.0, 10**30, 10**5000, 2**63, "", "x", "O", "bmes", "\ud800",
    "x" * 5000, "9" * 5000, b"", b"x", (), [], {}, set(), frozenset("ab"), [None], [[]], [[[]]], ["a"], [["a"]], ["a", 1], [b"a"],
    {"a": 1}, {0: "O"}, {0: None}, {0: ["O", "x"]}, {1: {"O"}}, {-1: "O"}, {"units": [0, 1], "type": "PER"}, {"units": [0], "type": 1},
    {"units": [0, 10**30], "type": "PER"}, [{0: "O"}], [{0: "E-PER"}], [{0: "B-PER", 1: "O"}], [None, None], [{}], [[{}]], Odd(), Odd,
    len, range(3), range(10**9, 10**9 + 2), complex(1, 2), np.int64(2), np.float32(1.5), np.array([0, 1]), np.array("a"), np.array(["a", "b"]),
    np.nan, torch.tensor(2), torch.tensor([1.0]), Sentence(()), Sentence(("a",)), Sentence((None,)), Sentence(("a",), document=-1),
    [Sentence(("a", "b"), ("O", "O"), 3, 10**30)], "mask-viterbi", "argmax", "viterbi", "native", "bio2", "plain", Path("/none"),
]  # fmt: skip


def _iterator(value: Any) -> Any:
    """A value as it is, or as an iterator over it."""
    return value if not isinstance(value, list) else itertools.chain(value)


def tagger_arguments(folder: Path, seeds: Iterable[int]) -> Iterator[bool]:
    few_calls = {"inference": {"num_calls": 1}}
    taggers = [small_tagger(settings=few_calls), small_tagger("unigram"), small_tagger("lcrf", Task.SEG_POS)]
    names = ["batch_tokens", "calls", "decoder", "clamp", "scheme", "trajectory", "marginals", "k_best", "documents"]
    good: dict[str, list[Any]] = {
        "batch_tokens": [1, 100], "calls": [1, 3], "decoder": ["argmax", "mask-viterbi"], "clamp": [[{0: "O"}]], "scheme": ["bmes"],
        "trajectory": [True], "marginals": [True], "k_best": [1, 3], "documents": [["a"]],
    }  # fmt: skip
    for seed in seeds:
        generator = Random(seed)
        tagger = generator.choice(taggers)
        given = generator.sample(names, generator.choice((0, 1, 1, 2, 3)))
        options = {name: generator.choice(ODD if generator.random() < 0.7 else good[name]) for name in given}
        sentences = generator.choice(ODD) if generator.random() < 0.3 else [["Ada", "sings"]]
        kind = generator.randrange(40)
        if kind == 0:
            text = generator.choice(ODD)
            call: Callable[[], object] = lambda: tagger.tag_text(text, **options)  # noqa: E731, B023
            sentences = text
        elif kind == 1:
            method = generator.choice((tagger.labels_in, tagger.set_on_long, Tagger.load, Tagger.from_bytes))
            value = generator.choice(ODD)
            call, sentences = (lambda: method(value)), (method, value)  # type: ignore[operator]  # noqa: B023
        else:
            call = lambda: list(tagger.stream(_iterator(sentences), **options))  # noqa: E731, B023
        yield is_fine(call, seed, (sentences, options))


def tagged_files(folder: Path, seeds: Iterable[int]) -> Iterator[bool]:
    taggers = [small_tagger("unigram"), small_tagger("unigram", Task.SEG_POS)]
    outputs = [None, None, None, *FileFormat]
    for seed in seeds:
        generator = Random(seed)
        tagger, file_format = generator.choice(taggers), generator.choice(_FORMATS)
        path, data = _write(folder, file_format, generator)
        options: dict[str, Any] = {
            "file_format": file_format if generator.random() < 0.8 else None,
            "output_format": generator.choice(outputs),
            "fields": _fields(generator),
            "use_scores": generator.random() < 0.3,
            "options": TaggingOptions(scheme=generator.choice(_SCHEMES)),
        }
        yield is_fine(lambda: tag_file(tagger, path, folder / "out", **options), seed, (path.name, options, data))  # noqa: B023


def hostile_models(folder: Path, seeds: Iterable[int]) -> Iterator[bool]:
    """Model folders and archives whose contents were changed by somebody who also corrected their checksums."""
    good = {path.name: path.read_bytes() for path in write_model(folder / "good", "unigram").iterdir()}
    archive = pack_folder(folder / "good")
    model = folder / "model"
    model.mkdir()

    def load() -> None:
        Tagger.load(model, device="cpu").tag([["Ada", "sings"]], marginals=True)

    for seed in seeds:
        generator = Random(seed)
        if generator.random() < 0.2:
            data = damaged(archive, generator)
            yield is_fine(lambda: Tagger.from_bytes(data, device="cpu"), seed, data)  # noqa: B023
            continue
        name = generator.choice(
            ("config.json", "vocabulary.json", "model.safetensors", "metrics.json", "manifest.json")
        )
        size = 600 if name == "model.safetensors" else len(good[name])  # the header of the weights
        data = damaged(good[name][:size], generator) + good[name][size:]
        if name == "config.json" and generator.random() < 0.5:
            data = _with_odd_value(good[name], generator)
        files = {**good, name: data}
        if name in ("vocabulary.json", "model.safetensors"):
            checksum = hashlib.sha256(good[name]).hexdigest().encode()
            files["config.json"] = files["config.json"].replace(checksum, hashlib.sha256(data).hexdigest().encode())
        if name != "manifest.json":
            listed = json.loads(good["manifest.json"])["files"]
            entries = {
                key: {"bytes": len(files[key]), "sha256": hashlib.sha256(files[key]).hexdigest()} for key in listed
            }
            files["manifest.json"] = json.dumps({"files": entries}).encode()
        for key, content in files.items():
            (model / key).write_bytes(content)
        yield is_fine(load, seed, (name, data))


def _with_odd_value(good: bytes, generator: Random) -> bytes:
    """A JSON object in which one value, at any depth, has another type or size."""
    values = json.loads(good)
    place: Any = values
    while True:
        key = generator.choice([*place])
        if not isinstance(place[key], dict) or not place[key] or generator.random() < 0.2:
            break
        place = place[key]
    place[key] = generator.choice(
        (None, True, -1, 0, 3, 1.5, 10**9, 10**30, 1e300, "", "x", [], {}, [1], {"a": 1}, "x" * 5000)
    )
    return json.dumps(values).encode()


FUZZERS: dict[str, tuple[Callable[[Path, Iterable[int]], Iterator[bool]], float]] = {
    "a damaged data file is read or refused in a sentence": (readers, 0.63),
    "a damaged file is scored or refused in a sentence": (scorer, 0.22),
    "a damaged configuration is loaded or refused in a sentence": (configurations, 0.05),
    "a damaged file is tagged or refused in a sentence": (tagged_files, 0.04),
    "a hostile model folder or archive is loaded or refused in a sentence": (hostile_models, 0.01),
    "odd arguments of a tagger are understood or refused in a sentence": (tagger_arguments, 0.05),
}
"""the promise: how it is tried, and its share of the cases"""
