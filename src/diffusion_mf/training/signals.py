"""SIGINT and SIGTERM, taken over for a while and given back."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def stop_signals(handle: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Call ``handle`` for SIGINT and SIGTERM for the time of the block, where this thread may; its argument gives them back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    for number in previous:
        signal.signal(number, lambda number, frame: handle(restore))
    try:
        yield
    finally:
        restore()
