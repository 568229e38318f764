# SPDX-License-Identifier: Apache-2.0
"""Reports the exit of this process to the other ranks of its groups.

A process that exits with code 0 leaves its groups, and no other process waits for it. A process
that exits with an exception reports it first: the calls of other ranks raise "rank 1 ...:
ValueError: the loss is nan", and the launcher prints its traceback. A process that exits with
another code, as by sys.exit(3), leaves no group, so the other ranks report it as lost.
"""

import functools
import multiprocessing.util
import os
import signal
import sys
import threading
import traceback


installed_in = None  # A process id: forked children lack its threads and exit handlers.


def install() -> None:
    """Watches for the exit of this process, from its first group on."""
    global installed_in
    if installed_in == os.getpid():
        return
    from lockstep import _C

    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        _C.catch_interrupts()
    if installed_in is None:
        sys.excepthook = functools.partial(end_with, sys.excepthook)
    installed_in = os.getpid()
    # As atexit, also in processes that multiprocessing forks.
    multiprocessing.util.Finalize(None, end, exitpriority=100)


has_failed = False


def end_with(next_hook, kind: type[BaseException], error: BaseException, trace) -> None:
    """Reports an uncaught exception to the other ranks and the launcher."""
    global has_failed
    # Interactive programs continue after an exception.
    if not (hasattr(sys, "ps1") or sys.flags.interactive):
        has_failed = True
        from lockstep import _C, Error

        fault = error.fault if isinstance(error, Error) else ""
        text = "".join(traceback.format_exception_only(kind, error)).strip()
        lines = "".join(traceback.format_exception(kind, error, trace))
        _C.end_with_exception(text, lines, fault)
    next_hook(kind, error, trace)


def end_of_child() -> None:
    """Reports an exception of a multiprocessing process, which multiprocessing itself catches."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        if not error.code:
            return
        if error.__context__ is None:
            from lockstep import _C

            return _C.end_with_exit_code(f"SystemExit: {error.code}")
        error = error.__context__
    if error is not None:
        end_with(lambda *known: None, type(error), error, error.__traceback__)


def end() -> None:
    """Leaves the groups of this process. If the process fails, only ends their threads, so that
    the other ranks report it as lost."""
    from lockstep import _C

    if multiprocessing.parent_process() is None:
        return _C.leave_all_at_exit()  # Python has not set the exit code yet.
    end_of_child()
    _C.leave_all()
