"""Sentences in, results out, in the same order: batches of similar length are made inside a bounded window."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from diffusion_mf.data.batching import evaluation_batches

Item = TypeVar("Item")
Answer = TypeVar("Answer")

WINDOW_BATCHES = 8
"""how many batches' worth of units are looked ahead, so that sentences of similar length meet"""
MAX_WINDOW_ITEMS = 4096
"""and how many sentences at most, for memory must be bounded however short they are"""


def windows(
    items: Iterable[Item],
    num_units: Callable[[Item], int],
    *,
    budget: int,
    document: Callable[[Item], int] | None = None,
) -> Iterator[list[Item]]:
    """Cut ``items`` into stretches of about `WINDOW_BATCHES` × ``budget`` units, reading no further than that.

    Given what ``document`` an item belongs to (0: none), none is cut: its end is known only from the item after it.
    """
    window: list[Item] = []
    total = 0
    is_full = False
    for item in items:
        if is_full and (document is None or document(item) != document(window[-1])):
            yield window
            window, total = [], 0
        window.append(item)
        total += num_units(item)
        is_full = total >= WINDOW_BATCHES * budget or len(window) >= MAX_WINDOW_ITEMS
        if is_full and (document is None or not document(item)):
            yield window
            window, total, is_full = [], 0, False
    if window:
        yield window


def in_order(
    window: Sequence[Item],
    sizes: Sequence[int],
    begin: Callable[[Sequence[Item]], Callable[[], Sequence[Answer]]],
    *,
    budget: int,
    num_ahead: int = 0,
    documents: Sequence[int] | None = None,
) -> list[Answer]:
    """The answers about the items of a window, batch by batch, in the order of the window.

    ``begin`` sets to work on a batch, and what it returns gives the answers; so many batches are begun ahead of the one whose
    answers are asked for. ``sizes`` are those of the items; a batch's, padded to the largest, are within the budget. Where
    ``documents`` are given, those of the items, none is parted.
    """
    batches, positions = evaluation_batches(sizes, budget=budget, documents=documents)
    begun: deque[Callable[[], Sequence[Answer]]] = deque()
    answers: list[Answer] = []
    for batch in batches:
        begun.append(begin([window[index] for index in batch]))
        if len(begun) > num_ahead:
            answers += begun.popleft()()
    for rest in begun:
        answers += rest()
    return [answers[position] for position in positions]
