"""The functions of the public interface; `diffusion_mf` imports them when they are first used."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from diffusion_mf.config import Config
from diffusion_mf.config.errors import override
from diffusion_mf.data.corpus import Task
from diffusion_mf.data.files import StrPath, make_folder, open_output
from diffusion_mf.data.formats import write_json_lines
from diffusion_mf.data.hugging_face import dataset_sentences
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import InputError
from diffusion_mf.evaluation.terminal import Display
from diffusion_mf.tagger import Tagger

if TYPE_CHECKING:
    from diffusion_mf.training.progress import Progress

LabelledData = StrPath | Iterable[tuple[Sequence[str], Sequence[str]]] | Iterable[list[tuple[str, str]]]
"""a labelled file, (words, labels) pairs, sentences of (word, label) pairs, or a Hugging Face dataset"""
_MEMORY = "data"
"""the folder of corpora in memory in that of their run"""


def load(name: StrPath, *, device: str = "auto", plugins: Sequence[str] = ()) -> Tagger:
    """`Tagger.load`: the tagger of a model folder, of the package (``en-pos``), or of the Hugging Face hub (``hf:OWNER/NAME``)."""
    return Tagger.load(name, device=device, plugins=plugins)


def train(
    config: Config | StrPath | None = None,
    *,
    train: LabelledData | Mapping[str, Any] | None = None,
    dev: LabelledData | None = None,
    test: LabelledData | None = None,
    system: str | None = None,
    task: str | None = None,
    encoder: str | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    output: StrPath | None = None,
    resume: bool = False,
    device: str = "auto",
    on_progress: Callable[[Progress], None] | None = None,
) -> Tagger:
    """Train on labelled data, or by a configuration (an object, file or name); returns the best model as a tagger.

    The arguments have the same meaning as for ``dmf train``: ``train`` alone is enough. Data are files, (words, labels) pairs,
    lists of (word, label) pairs as NLTK has them, or Hugging Face datasets. ``settings`` override those chosen, as in
    ``{"training.epochs": 3}``. ``output`` is a folder for checkpoints, log and model; without it only the tagger is kept.
    ``on_progress`` is called with every `Progress`, which is then not shown.
    """
    # Not at the top: training imports the tagger.
    from diffusion_mf.training.automatic import plan_run
    from diffusion_mf.training.loop import train as run
    from diffusion_mf.training.progress import Callbacks, RunDisplay

    with contextlib.ExitStack() as stack:
        if output is None:
            output = stack.enter_context(tempfile.TemporaryDirectory(prefix="diffusion-mf-"))
        display: RunDisplay = Callbacks(logging.getLogger("diffusion_mf").warning, on_progress)
        if on_progress is None:
            display = stack.enter_context(Display())
        files = _files(train, dev, test, Path(output), task=task, resume=resume)
        corpus = files.pop("data.train", None) if config is None else None
        options = {"system": system, "task": task, "seed": seed, "encoder.model": encoder}
        options["encoder.kind"] = None if encoder is None else "pretrained"
        given = {**{key: value for key, value in options.items() if value is not None}, **files, **(settings or {})}
        # A caller with its own display of progress gets routine messages by logging only.
        tell = display.note if on_progress is None else logging.getLogger("diffusion_mf").info
        with _about_sentences(Path(output)):
            planned = plan_run(
                corpus=corpus,
                configuration=config,
                overrides=[override(key, value) for key, value in given.items()],
                begun_in=Path(output) if resume else None,
                minutes=minutes,
                device=device,
                tell=tell,
            )
        folder = run(
            planned.config,
            output=output,
            resume=resume,
            device=device,
            display=display,
            overrides=planned.overrides,
            planned_steps=planned.planned_steps,
            corpora=planned.corpora,
        )
        return Tagger.load(folder, device=device)


@contextlib.contextmanager
def _about_sentences(output: Path) -> Iterator[None]:
    """Errors in the files of corpora in memory, which callers never see, name the sentence: each line has one."""
    try:
        yield
    except InputError as error:
        path = Path(error.path or "")
        if path.parent != output / _MEMORY:
            raise
        place = "" if error.line is None else f"sentence {error.line} of "
        raise InputError(f"{place}the {path.stem} data: {error.problem}", remedy=error.remedy) from None


def _files(
    train: Any,
    dev: Any,
    test: Any,
    output: Path,
    *,
    task: str | None,
    resume: bool,
) -> dict[str, str]:
    """The settings that name the files of the corpora; corpora in memory are written to the folder of the run."""
    from diffusion_mf.training.resumption import RunFolder

    if isinstance(train, Mapping):
        # A Hugging Face dataset with its splits.
        dev = _dev_split(train) if dev is None else dev
        test = train.get("test") if test is None else test
        if "train" not in train:
            raise InputError(
                f"the dataset has no split called train (it has {', '.join(map(str, train)) or 'none'})",
                remedy="give the split to train on",
            )
        train = train["train"]
    folder = RunFolder(output)
    if not resume:
        folder.check_unused()
    if any(not isinstance(corpus, str | os.PathLike | None) for corpus in (train, dev, test)):
        folder.mark()
    return {
        f"data.{split}": _file(corpus, output / _MEMORY / f"{split}.jsonl", task)
        for split, corpus in (("train", train), ("dev", dev), ("test", test))
        if corpus is not None
    }


_DEV_SPLITS = ("validation", "valid", "val", "dev", "development")


def _dev_split(splits: Mapping[str, Any]) -> Any:
    """The dev data among the splits of a dataset, which have several usual names; None if there are none."""
    found = [name for name in _DEV_SPLITS if splits.get(name) is not None]
    if len(found) > 1:
        raise InputError(
            f"the dataset has several splits of dev data ({', '.join(found)})", remedy="give one of them as dev"
        )
    return splits[found[0]] if found else None


def _has_tagged_words(sentences: Sequence[Any]) -> bool:
    """Whether every sentence is a list of (word, label) tuples, as in NLTK, and not a pair of words and labels."""
    if not all(
        isinstance(each, list) and all(isinstance(unit, tuple) and len(unit) == 2 for unit in each)
        for each in sentences
    ):
        return False
    if sentences and all(len(each) == 2 for each in sentences):
        raise InputError(
            "every sentence is a list of two tuples of two: two words with their labels, or the words and the labels of a sentence?",
            remedy='write each sentence as (["Ada", "sleeps"], ["B-PER", "O"])',
        )
    return True


def _labelled_sentences(pairs: Iterable[Any], split: str) -> Iterator[Sentence]:
    """The sentences of (words, labels) pairs; `InputError` for anything else, with the number of the sentence."""
    pairs = list(pairs)
    if _has_tagged_words(pairs):
        pairs = [tuple(zip(*each, strict=True)) or ((), ()) for each in pairs]
    is_empty = True
    for number, pair in enumerate(pairs, 1):

        def fail(problem: str, remedy: str, number: int = number) -> NoReturn:
            raise InputError(f"sentence {number} of the {split} data {problem}", remedy=remedy)

        if not isinstance(pair, tuple | list) or len(pair) != 2:
            fail("is not a pair of words and labels", 'write (["Ada", "sleeps"], ["B-PER", "O"])')
        parts = []
        for name, values in zip(("words", "labels"), pair, strict=True):
            is_listed = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)
            parts.append(tuple(values) if is_listed else (None,))
            if not all(isinstance(value, str) and value for value in parts[-1]):
                fail(f"has {name} that are not a list of non-empty strings", f"write its {name} as a list of strings")
        words, labels = parts
        if len(words) != len(labels):
            fail(f"has {len(words):,} words, but labels: {len(labels):,}", "give every word one label")
        if not words:
            fail("is empty", "leave it out")
        is_empty = False
        yield Sentence(words, labels)
    if is_empty:
        raise InputError(f"the {split} data have no sentences", remedy="give (words, labels) pairs, or a file")


def _file(corpus: LabelledData, path: Path, task: str | None) -> str:
    """The file of a corpus; a corpus in memory is first written to ``path``, since a resumed run needs it again."""
    if isinstance(corpus, str | os.PathLike):
        return os.fspath(corpus)
    sentences: Iterable[Sentence]
    if hasattr(corpus, "features"):
        name = f"the {path.stem} data"
        sentences = dataset_sentences(corpus, task=None if task is None else Task(task), name=name)
    else:
        sentences = _labelled_sentences(corpus, path.stem)
    make_folder(path.parent)
    with open_output(path) as stream:
        write_json_lines(sentences, stream)
    return os.fspath(path)
