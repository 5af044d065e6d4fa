"""Little work stays in one thread, and a process that has tagged may fork; all in processes of their own, with two threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_models import small_tagger

from diffusion_mf.errors import InputError
from diffusion_mf.prediction.cpu import num_multiplications, one_thread

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc, and forks")

BEGINNING = """
import multiprocessing, os, threading
import torch
from small_models import small_tagger

def num_threads():
    return len(os.listdir("/proc/self/task"))

tagger = small_tagger("mean-field")
sentences = [["Ada", "sings", "in", "Oslo", "for", "the", "royal", "choir"]] * 300
context = multiprocessing.get_context("fork")

def labels():
    return [result.labels for result in tagger.tag(sentences)]

def same_labels_in_child(expected):
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(labels() == expected))
    child.start()
    child.join(60)
    if child.is_alive():
        child.kill()
        raise SystemExit("the child hangs")
    return not answers.empty() and answers.get()
"""


def run(code: str) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "PYTHONWARNINGS": "ignore"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
    )
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + code], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr


def test_little_work_starts_no_threads_and_leaves_the_number_alone() -> None:
    run("""
before = num_threads()
expected = labels()
assert num_threads() == before
assert torch.get_num_threads() == 2
seen = []
other = threading.Thread(target=lambda: (labels(), seen.append(torch.get_num_threads())))
other.start()
other.join()
assert seen == [2]

tagger._one_thread_units = 0
assert labels() == expected
assert num_threads() > before, "the batch is too small to show anything"

# A number that was set for the process counts less, too.
tagger._one_thread_units = 10**9
torch.set_num_threads(3)
before = num_threads()
assert labels() == expected
assert num_threads() == before
assert torch.get_num_threads() == 3
""")


def test_a_child_tags_after_its_parent_has_used_threads() -> None:
    run("""
tagger._one_thread_units = 0
expected = labels()
assert same_labels_in_child(expected)
assert torch.get_num_threads() == 2
assert labels() == expected
""")


def test_a_child_that_was_forked_while_another_thread_tags_does_not_hang() -> None:
    run("""
expected = labels()
is_over = threading.Event()

def tag():
    while not is_over.is_set():
        labels()

busy = threading.Thread(target=tag)
busy.start()
found = [same_labels_in_child(expected) for _ in range(5)]
is_over.set()
busy.join()
assert found == [True] * 5
""")


def test_a_tagger_on_a_gpu_refuses_to_work_in_a_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    tagger = small_tagger("unigram")
    monkeypatch.setattr(tagger, "device", torch.device("cuda"))
    monkeypatch.setattr(tagger, "_process", os.getppid())
    with pytest.raises(InputError, match="GPU cannot be used in a forked process"):
        tagger.tag([["Ada"]])


def test_one_thread_is_for_the_calling_thread_and_for_a_time() -> None:
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_tables_of_embeddings_multiply_nothing() -> None:
    tagger = small_tagger("unigram")
    embeddings = [
        module.weight.numel() for module in tagger.model.labeller.modules() if hasattr(module, "num_embeddings")
    ]
    matrices = sum(weights.numel() for weights in tagger.model.labeller.parameters() if weights.ndim > 1)
    assert num_multiplications(tagger.model) == matrices - sum(embeddings) > 0
