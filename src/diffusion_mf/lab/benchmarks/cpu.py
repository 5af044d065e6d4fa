"""Compares our taggers with others on a CPU, trained on the same sentences and called as their users call them.

Each library is imported only when needed. Trained peers are kept in separate folders and not trained again.
"""

from __future__ import annotations

import abc
import gc
import hashlib
import importlib
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from diffusion_mf.data.corpus import Corpus, Task
from diffusion_mf.data.files import StrPath, make_folder
from diffusion_mf.data.label_schemes import LabelledSpan, LabelScheme, convert_labels, encode_spans
from diffusion_mf.data.sentence import Sentence
from diffusion_mf.errors import DiffusionMFError, InputError
from diffusion_mf.evaluation import PRIMARY_METRICS, score_sentences
from diffusion_mf.lab.benchmarks.timing import seconds_of
from diffusion_mf.lab.results import hardware, num_cores
from diffusion_mf.tagger import Tagger

Labels = list[list[str]]
Tag = Callable[[Sequence[Sequence[str]]], Labels]
"""labels sentences of words, including all the work this takes"""


class Peer(abc.ABC):
    """A tagger to compare with: how it is trained and loaded."""

    name: ClassVar[str]
    distribution: ClassVar[str]
    module: ClassVar[str]
    file: ClassVar[str]
    """the file in its folder once it is trained"""
    description: str
    """how it is trained, for its row"""

    def import_module(self) -> Any:
        """Import its module; `ImportError` if it is not installed."""
        return importlib.import_module(self.module)

    def is_trained(self, folder: Path) -> bool:
        """Whether the folder contains a trained tagger; files are written there atomically."""
        return (folder / self.file).exists()

    @abc.abstractmethod
    def train(self, train: Sequence[Sentence], dev: Sequence[Sentence], folder: Path) -> None:
        """Train on ``train``, using ``dev`` for selection if the peer can."""

    @abc.abstractmethod
    def load(self, folder: Path) -> Tag:
        """The trained tagger."""


class Crfsuite(Peer):
    """python-crfsuite: a linear-chain CRF over the features its users usually give it."""

    name, distribution, module, file = "python-crfsuite", "python-crfsuite", "pycrfsuite", "model.crfsuite"
    description = "word, affixes, shape and window features; L-BFGS, 100 iterations, L2 0.1, all features"

    def __init__(self, *, c1: float = 0.0, c2: float = 0.1, min_count: int = 1, max_iterations: int = 100) -> None:
        self.settings = {"c1": c1, "c2": c2, "feature.minfreq": min_count, "max_iterations": max_iterations}

    def train(self, train: Sequence[Sentence], dev: Sequence[Sentence], folder: Path) -> None:
        """Train by L-BFGS with a little regularisation; dev is not used."""
        trainer = self.import_module().Trainer(verbose=False)
        for sentence in train:
            trainer.append(features(sentence.units), sentence.labels)
        trainer.set_params(self.settings)
        trainer.train(str(folder / "unfinished"))
        (folder / "unfinished").rename(folder / self.file)

    def load(self, folder: Path) -> Tag:
        """Features and Viterbi, sentence by sentence."""
        tagger = self.import_module().Tagger()
        tagger.open(str(folder / self.file))
        return lambda sentences: [tagger.tag(features(words)) if words else [] for words in sentences]


def features(words: Sequence[str]) -> list[list[str]]:
    """The features of every word: itself, its affixes and shape, and the two words on either side."""
    lowered = ["<s>", "<s>", *map(str.lower, words), "</s>", "</s>"]
    found = []
    for index, word in enumerate(words):
        low = lowered[index + 2]
        before, after = lowered[index + 1], lowered[index + 3]
        found.append(
            [
                "b",
                "w=" + word,
                "l=" + low,
                "p1=" + low[:1],
                "p2=" + low[:2],
                "p3=" + low[:3],
                "s1=" + low[-1:],
                "s2=" + low[-2:],
                "s3=" + low[-3:],
                "s4=" + low[-4:],
                "h=" + shape(word),
                "-1=" + before,
                "-2=" + lowered[index],
                "+1=" + after,
                "+2=" + lowered[index + 4],
                "-1,0=" + before + " " + low,
                "0,+1=" + low + " " + after,
                "-1s=" + before[-3:],
                "+1s=" + after[-3:],
            ]
        )
    return found


def shape(word: str) -> str:
    """Capitals, digits and marks, in a few letters."""
    if word.isalpha():
        return "x" if word.islower() else "X" if word.isupper() else "Xx" if word[0].isupper() else "xX"
    kinds = ("d" if c.isdigit() else "X" if c.isupper() else "x" if c.isalpha() else c for c in word)
    found = ""
    for kind in kinds:
        if not found.endswith(kind):
            found += kind
    return found


class UDPipe(Peer):
    """UDPipe 1: MorphoDiTa's averaged perceptron with a guesser for unknown words."""

    name, distribution, module, file = "udpipe-1", "ufal.udpipe", "ufal.udpipe", "model.udpipe"
    options = "models=1;use_lemma=0;use_xpostag=0;use_feats=0;provide_lemma=0;provide_xpostag=0;provide_feats=0"

    def __init__(self, *, iterations: int = 20) -> None:
        self.iterations = iterations
        self.description = f"tagger of these labels alone, default templates, best on dev of {iterations} iterations"

    def train(self, train: Sequence[Sentence], dev: Sequence[Sentence], folder: Path) -> None:
        """Its own trainer, tagger only; dev stops it early."""
        udpipe = self.import_module()
        error = udpipe.ProcessingError()
        parts = [udpipe.Sentences(), udpipe.Sentences()]
        for part, sentences in zip(parts, (train, dev), strict=True):
            for sentence in sentences:
                part.append(self._sentence(udpipe, sentence.units, sentence.labels))
        options = f"{self.options};iterations={self.iterations}" + (";early_stopping=1" if dev else "")
        none = udpipe.Trainer.NONE
        model = udpipe.Trainer.train("morphodita_parsito", *parts, none, options, none, error)
        if error.occurred():
            raise DiffusionMFError(f"UDPipe cannot be trained: {error.message}.")
        (folder / "unfinished").write_bytes(model)
        (folder / "unfinished").rename(folder / self.file)

    def load(self, folder: Path) -> Tag:
        """Sentence by sentence, from words to tags."""
        udpipe = self.import_module()
        model = udpipe.Model.load(str(folder / self.file))
        default = udpipe.Model.DEFAULT

        def tag(sentences: Sequence[Sequence[str]]) -> Labels:
            found = []
            for words in sentences:
                sentence = self._sentence(udpipe, words)
                model.tag(sentence, default)
                tagged = iter(sentence.words)
                next(tagged)  # the root
                found.append([word.upostag for word in tagged])
            return found

        return tag

    @staticmethod
    def _sentence(udpipe: Any, words: Sequence[str], labels: Iterable[str] | None = None) -> Any:
        sentence = udpipe.Sentence()
        for word in words:
            # Its dictionary cannot hold forms of more than 255 bytes, which occur in tweets.
            sentence.addWord(word[:60])
        if labels is not None:
            for index, label in enumerate(labels, 1):
                sentence.words[index].upostag = label
        return sentence


class Spacy(Peer):
    """spaCy's tagger, or its recogniser of entities, on its convolutional tok2vec layers."""

    name, distribution, module, file = "spacy", "spacy", "spacy", "model"
    batch_words: int = 1000

    def __init__(
        self, *, task: Task = Task.POS, width: int = 96, depth: int = 4, epochs: int = 30, patience: int = 3
    ) -> None:
        self.task, self.width, self.depth, self.epochs, self.patience = task, width, depth, epochs, patience
        self.description = (
            f"{'tagger' if task is Task.POS else 'ner'}, tok2vec of width {width} and depth {depth}, until dev has not risen for "
            f"{patience} epochs, at most {epochs}"
        )

    def train(self, train: Sequence[Sentence], dev: Sequence[Sentence], folder: Path) -> None:
        """Adam with spaCy's defaults on batches of about a thousand words; the epoch best on dev is kept."""
        spacy = self.import_module()
        from spacy.training import Example

        nlp = spacy.blank("xx")
        tok2vec = {
            "@architectures": "spacy.HashEmbedCNN.v2",
            "pretrained_vectors": None,
            "width": self.width,
            "depth": self.depth,
            "embed_size": 5000,
            "window_size": 1,
            "maxout_pieces": 3,
            "subword_features": True,
        }
        if self.task is Task.POS:
            nlp.add_pipe("tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": tok2vec}})
        else:
            parser = {
                "@architectures": "spacy.TransitionBasedParser.v2",
                "state_type": "ner",
                "extra_state_tokens": False,
                "hidden_width": 64,
                "maxout_pieces": 2,
                "use_upper": True,
                "nO": None,
                "tok2vec": tok2vec,
            }
            nlp.add_pipe("ner", config={"model": parser})

        def example(sentence: Sentence) -> Any:
            doc = spacy.tokens.Doc(nlp.vocab, words=list(sentence.units))
            labels = list(sentence.labels or ())
            if self.task is Task.POS:
                return Example.from_dict(doc, {"tags": labels})
            return Example.from_dict(doc, {"entities": convert_labels(labels, LabelScheme.BMES, LabelScheme.BILOU)})

        generator = random.Random(1)
        # spaCy takes its own random numbers from here.
        spacy.util.fix_random_seed(1)
        optimizer = nlp.initialize(lambda: [example(sentence) for sentence in train])
        best, steps, epoch_of_best = -1.0, 0, 0
        for epoch in range(self.epochs):
            if epoch - epoch_of_best > self.patience:
                break
            order = generator.sample(range(len(train)), len(train))
            for batch in _batches([train[index] for index in order], self.batch_words):
                # Warm-up, then a slow decline: the rates of spaCy's own training configurations.
                steps += 1
                optimizer.learn_rate = 0.001 * min(steps / 250, max(0.0, 1 - steps / 20_000))
                nlp.update([example(sentence) for sentence in batch], sgd=optimizer, drop=0.1)
            with nlp.use_params(optimizer.averages):
                tagged = self._tag(spacy, nlp, [sentence.units for sentence in dev])
                score = _scores(self.task, dev, tagged)[PRIMARY_METRICS[self.task]]
                if score > best:
                    best, epoch_of_best = score, epoch
                    nlp.to_disk(folder / "unfinished")
        (folder / "unfinished").rename(folder / self.file)

    def load(self, folder: Path) -> Tag:
        """`nlp.pipe` over documents made of words, in this process."""
        spacy = self.import_module()
        nlp = spacy.load(folder / self.file)
        return lambda sentences: self._tag(spacy, nlp, sentences)

    def _tag(self, spacy: Any, nlp: Any, sentences: Sequence[Sequence[str]]) -> Labels:
        documents = (spacy.tokens.Doc(nlp.vocab, words=list(words)) for words in sentences)
        tagged = nlp.pipe(documents, batch_size=256)
        if self.task is Task.POS:
            return [[token.tag_ for token in document] for document in tagged]
        return [
            encode_spans(
                [LabelledSpan(entity.start, entity.end, entity.label_) for entity in document.ents],
                len(document),
                LabelScheme.BMES,
            )
            for document in tagged
        ]


def _batches(sentences: Iterable[Sentence], num_words: int) -> Iterable[list[Sentence]]:
    batch: list[Sentence] = []
    total = 0
    for sentence in sentences:
        batch.append(sentence)
        total += len(sentence.units)
        if total >= num_words:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def _scores(task: Task, sentences: Iterable[Sentence], found: Labels) -> Mapping[str, float]:
    return score_sentences(task, task.scheme, [sentence.labels or () for sentence in sentences], found)


def all_peers(task: Task) -> list[Peer]:
    """All peers, in the order of tables."""
    return [Crfsuite(), UDPipe(), Spacy(task=task)]


CPU_ROW_KEY = ("corpus", "system", "calls", "pytorch_threads", "hardware")


class Contestant(NamedTuple):
    """A tagger ready to run, and the fields of its row."""

    tag: Tag
    facts: Mapping[str, Any]
    forget: Callable[[], None] = lambda: None
    """called before every pass to clear caches, so that earlier passes over the test file do not help"""


def peer_contestants(
    peers: Sequence[Peer], train: Corpus, dev: Corpus, folder: StrPath, *, note: Callable[[str], None]
) -> list[Contestant]:
    """The installed peers, trained unless ``folder`` has them already; the others are reported."""
    found = []
    for peer in peers:
        try:
            peer.import_module()
        except ImportError:
            note(f"{peer.name} is not installed, so it is left out; pip install 'diffusion-mf[benchmark-cpu]'")
            continue
        # A peer trained with other settings must not be used instead.
        digest = hashlib.sha256(peer.description.encode()).hexdigest()[:8]
        place = Path(folder) / f"{peer.name}-{digest}"
        if not peer.is_trained(place):
            note(f"training {peer.name}")
            make_folder(place)
            peer.train(train.sentences, dev.sentences, place)
        # One thread each: none of the peers' taggers uses more in one process.
        facts = {"system": peer.name, "is_ours": False, "calls": None, "threads": 1, "training": peer.description}
        found.append(Contestant(peer.load(place), facts))
    return found


def model_contestant(name: str, folder: StrPath, *, calls: int | None = None) -> Contestant:
    """One of our model folders, under the given name."""
    tagger = Tagger.load(folder, device="cpu")
    tagger.keep_words()
    config = tagger.model.config

    def tag(sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        return [result.labels for result in tagger.tag(sentences, calls=calls, scheme=tagger.model.scheme)]

    facts = {
        "system": name,
        "is_ours": True,
        "calls": calls,
        "threads": torch.get_num_threads(),
        "training": f"{config.system} on a {config.encoder.title} encoder",
    }
    return Contestant(tag, facts, tagger.forget_words)


def measure_cpu(
    contestants: Sequence[Contestant],
    test: Corpus,
    *,
    task: Task = Task.POS,
    passes: int,
) -> Iterator[list[dict[str, Any]]]:
    """Yield nothing after every pass, and at the end a row per contestant.

    Rows have scores (from an untimed pass), words per second (median of ``passes``) and both compared.
    """
    gold = [sentence for sentence in test if sentence.units]
    sentences = [list(sentence.units) for sentence in gold]
    num_words = sum(map(len, sentences))
    if not num_words:
        raise InputError("there is nothing to tag", path=test.path, remedy="use a file with sentences")
    scores = []
    for contestant in contestants:
        scores.append(_scores(task, gold, contestant.tag(sentences)))
        yield []
    seconds: list[list[float]] = [[] for _ in contestants]
    for _ in range(passes):
        for times, contestant in zip(seconds, contestants, strict=True):
            # Garbage of one pass must not be collected during the next.
            gc.collect()
            contestant.forget()
            times.append(seconds_of(lambda tag=contestant.tag: tag(sentences), torch.device("cpu")))  # type: ignore[misc]
            yield []
    rows = []
    for contestant, found, times in zip(contestants, scores, seconds, strict=True):
        rows.append(
            {
                **contestant.facts,
                # For tags, F1 adds nothing to accuracy.
                **({} if task is Task.POS else {"f1": round(found["f1"], 2)}),
                "accuracy": round(found["accuracy"], 2),
                "exact_match": round(found["exact_match"], 2),
                "words_per_second": round(num_words / statistics.median(times)),
                "fastest_pass": round(num_words / min(times)),
                "slowest_pass": round(num_words / max(times)),
                "passes": passes,
                "words": num_words,
                "cores": num_cores(),
                "pytorch_threads": torch.get_num_threads(),
            }
        )
    for row in rows:
        row["matched_by"] = None if row["is_ours"] else best_match(row, rows)
    yield rows


def best_match(peer: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The fastest of our models that is at least as good and as fast as a peer; None if there is none."""
    metric = "f1" if "f1" in peer else "accuracy"
    matching = [
        row
        for row in rows
        if row["is_ours"] and row[metric] >= peer[metric] and row["words_per_second"] >= peer["words_per_second"]
    ]
    return max(matching, key=lambda row: row["words_per_second"])["system"] if matching else None


def speed_on_one_core(folder: StrPath, corpus: Corpus) -> dict[str, Any]:
    """What a model's card says about its speed: words per second of processor time with one thread, the median of three passes.

    Processor time does not depend on what else the machine does. For models of characters, the words they find are counted.
    """
    sentences = [list(sentence.units) for sentence in corpus if sentence.units]
    if not sentences:
        raise InputError("there is nothing to tag", path=corpus.path, remedy="use a file with sentences")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tagger = Tagger.load(folder, device="cpu")
        tagger.keep_words()
        results = tagger.tag(sentences)
        num_words = sum(len(result.spans if tagger.task is Task.SEG_POS else result.units) for result in results)
        times = []
        for _ in range(3):
            gc.collect()
            tagger.forget_words()
            start = time.process_time()
            tagger.tag(sentences)
            times.append(time.process_time() - start)
    finally:
        torch.set_num_threads(before)
    # Rounded to hundreds: further digits are not reproducible.
    speed = round(num_words / statistics.median(times), -2)
    return {"words_per_second": int(speed), "threads": 1, "hardware": f"{hardware()}, processor time"}
