"""What a tagger does only on a CPU: cached word vectors, smaller batches, one thread for little work, safe forks."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

if TYPE_CHECKING:
    from diffusion_mf.model.storage import StoredModel
    from diffusion_mf.networks.known_words import KnownWords


CPU_BATCH_UNITS = 2000
"""units per batch on a CPU, padding included: with more, a Transformer's data no longer fit into the CPU's caches"""

ONE_THREAD_WORK = 3 * 10**8
"""multiplications of one pass through the networks, about ten milliseconds: in so short a time, threads that synchronise dozens
of times mostly wait for each other as soon as the machine does anything else"""


def known_words(model: StoredModel) -> KnownWords | None:
    """A cache of word vectors, for a model whose encoder has a part that sees one word at a time."""
    from diffusion_mf.networks.known_words import KnownWords
    from diffusion_mf.networks.words import WordEncoder

    encoder = getattr(model.labeller, "encoder", None)
    return KnownWords(encoder, model.vocabulary) if isinstance(encoder, WordEncoder) else None


def has_transformer(model: StoredModel) -> bool:
    """Whether there is a Transformer between words and labels."""
    from diffusion_mf.networks.encoders import WindowEncoder

    encoder = getattr(model.labeller, "encoder", None)
    return model.config.system_entry.is_diffusion or not isinstance(encoder, WindowEncoder)


def num_multiplications(model: StoredModel) -> int:
    """The approximate number per unit in one pass: the size of all matrices except embedding tables."""
    tables = {module.weight for module in model.labeller.modules() if isinstance(module, nn.Embedding)}
    return sum(weights.numel() for weights in model.labeller.parameters() if weights.ndim > 1 and weights not in tables)


class _ThreadLimits(NamedTuple):
    """Functions of the libraries that PyTorch computes with; they affect the calling thread only."""

    set_openmp: Callable[[int], None]
    set_mkl: Callable[[int], int] | None
    """returns the previous number; 0 means OpenMP's"""


@functools.cache
def _thread_limits() -> _ThreadLimits | None:
    """None if PyTorch does not come with them."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return _ThreadLimits(library.omp_set_num_threads, getattr(library, "MKL_Set_Num_Threads_Local", None))
    except (OSError, AttributeError):
        return None


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute in the calling thread only.

    `torch.set_num_threads` affects the whole process: threads started in the meantime would keep that number.
    """
    limits = _thread_limits()
    if limits is None:
        yield
        return
    num_threads = torch.get_num_threads()  # called first, because PyTorch sets a thread's number at first use
    limits.set_openmp(1)
    of_mkl = limits.set_mkl(1) if limits.set_mkl else 0
    try:
        yield
    finally:
        limits.set_openmp(num_threads)
        if limits.set_mkl:
            limits.set_mkl(of_mkl)


_TURNS: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_FORKING = threading.RLock()
_held: list[threading.RLock] = []


def new_turn() -> threading.RLock:
    """A lock for threads that share a tagger; a fork waits for it, so that no child starts in the middle of a batch."""
    turn = threading.RLock()
    _TURNS.add(turn)
    return turn


def _before_fork() -> None:
    _FORKING.acquire()
    for turn in list(_TURNS):
        turn.acquire()
        _held.append(turn)


def _after_fork() -> None:
    while _held:
        _held.pop().release()
    _FORKING.release()


def _after_fork_in_child() -> None:
    _after_fork()
    # OpenMP's threads stay with the parent process; work given to them in the child would wait forever.
    limits = _thread_limits()
    if _TURNS and limits is not None:
        torch.get_num_threads()
        limits.set_openmp(1)
        if limits.set_mkl:
            limits.set_mkl(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
