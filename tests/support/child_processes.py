"""Work in forked processes: on a full disk, without rights, without a network, or until they are killed."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from diffusion_mf.errors import DiffusionMFError
from diffusion_mf.prediction.cpu import one_thread

LONGEST = 120
"""seconds that a child may take: one that hangs must not stop the suite, and says where it hung"""
NOBODY = 65534
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
"""of unshare(2)"""


def in_child(work: Callable[[], object]) -> int:
    """The process id of a fork that does ``work`` and ends: with 0, with the status it exits with, or with 1 after an error."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    # What the parent process has left to collect may join threads that the child does not have.
    gc.freeze()
    faulthandler.dump_traceback_later(LONGEST, exit=True, file=sys.__stderr__)
    try:
        # OpenMP's threads stay with the parent process; the child must not wait for them.
        with one_thread():
            work()
        status = 0
    except SystemExit as stop:
        status = 0 if stop.code is None else int(stop.code)
    except DiffusionMFError as error:
        print(error, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def status_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def holds_in_child(condition: Callable[[], bool], *before: Callable[[], object]) -> bool:
    """Whether ``condition`` holds in a fork that called ``before``."""

    def work() -> None:
        for call in before:
            call()
        sys.exit(not condition())

    return status_of(in_child(work)) == 0


def fill_disk(num_bytes: int) -> None:
    """Let no file grow beyond ``num_bytes``: the same error as that of a full disk, but for its number."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def drop_rights() -> None:
    """Become a user for whom permissions count, as they do not for root."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def cut_network() -> None:
    """Leave for a network without any interface, with all processes started from here."""
    flags = NEW_NETWORK if os.geteuid() == 0 else NEW_NETWORK | NEW_USER
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), "the network cannot be left")


def run_command(*arguments: object, stderr: Path) -> None:
    """``dmf`` in this process, which ends with it; messages are added to ``stderr``."""
    from diffusion_mf.cli import main

    handle = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 2)
    sys.stderr = os.fdopen(handle, "w")
    sys.argv = ["dmf", *map(str, arguments)]
    try:
        main()
    finally:
        sys.stderr.flush()


def close_pipe() -> None:
    """Let standard output be a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    os.dup2(writing, 1)
    sys.stdout = os.fdopen(writing, "w")
