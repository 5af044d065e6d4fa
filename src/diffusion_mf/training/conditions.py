"""What PyTorch is told for the time of a run, and put back afterwards: threads, determinism, precision, signals."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
import torch.utils.deterministic

from diffusion_mf.signals import stop_signals


@contextlib.contextmanager
def reproducible(device: torch.device, *, threads: int | None) -> Iterator[None]:
    """Use so many threads, and on the CPU only algorithms that give the same bits every time; random state is put back."""
    previous_threads = torch.get_num_threads()
    previous_mode = torch.get_deterministic_debug_mode()
    previous_fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if threads is not None:
        torch.set_num_threads(threads)
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)
        # Filling is a help to find bugs, not needed for determinism, and costs time.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        torch.set_num_threads(previous_threads)
        torch.set_deterministic_debug_mode(previous_mode)
        torch.utils.deterministic.fill_uninitialized_memory = previous_fill  # type: ignore[attr-defined]


class Interruption:
    """Whether SIGINT or SIGTERM came: the run then ends at the next step, after a checkpoint. A second one ends it at once."""

    def __init__(self) -> None:
        self.is_requested = False

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """Watch for the signals, where this thread may."""
        return stop_signals(self._request)

    def _request(self, restore: Callable[[], None]) -> None:
        self.is_requested = True
        restore()
