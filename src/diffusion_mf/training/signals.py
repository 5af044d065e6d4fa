"""Temporary handlers for SIGINT, SIGTERM and SIGHUP."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

from diffusion_mf.errors import TerminatedError


def stop_error(number: int) -> BaseException:
    """What a signal that asks to stop raises."""
    return KeyboardInterrupt() if number == signal.SIGINT else TerminatedError(number)


@contextlib.contextmanager
def stop_signals(handle: Callable[[BaseException, Callable[[], None]], None]) -> Iterator[None]:
    """Call ``handle`` for SIGINT, SIGTERM and, unless nohup ignores it, SIGHUP during the block, if this thread can.

    Its arguments are the exception for that signal, to be raised where the work can end, and what restores the old handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if previous[signal.SIGHUP] is signal.SIG_IGN:
        del previous[signal.SIGHUP]

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    for number in previous:
        signal.signal(number, lambda number, frame: handle(stop_error(number), restore))
    try:
        yield
    finally:
        restore()
