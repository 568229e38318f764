# SPDX-License-Identifier: Apache-2.0
"""The end of this process, as the other ranks of its groups see it.

A process that ends with code 0 leaves its groups, and no other one waits for it. One that ends with
an exception says so first: the calls of the others raise "rank 1 ...: ValueError: the loss is nan",
and the launcher shows its traceback. One that ends with another code, as by sys.exit(3), leaves no
group, and the others miss it.
"""

import functools
import multiprocessing.util
import os
import signal
import sys
import threading
import traceback


installed_in = None  # The process: children that it fork()s have neither its threads nor its ends.


def install() -> None:
    """Watches for the end of this process, from its first group on."""
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
    # As atexit, and in processes that multiprocessing has fork()ed, too.
    multiprocessing.util.Finalize(None, end, exitpriority=100)


has_failed = False


def end_with(next_hook, kind: type[BaseException], error: BaseException, trace) -> None:
    """Tells the other ranks and the launcher of an exception that nobody has caught."""
    global has_failed
    if not (hasattr(sys, "ps1") or sys.flags.interactive):  # There, the process goes on.
        has_failed = True
        from lockstep import _C, Error

        fault = error.fault if isinstance(error, Error) else ""
        text = "".join(traceback.format_exception_only(kind, error)).strip()
        lines = "".join(traceback.format_exception(kind, error, trace))
        _C.end_with_exception(text, lines, fault)
    next_hook(kind, error, trace)


def end_of_child() -> None:
    """Tells the other ranks what ends a process of multiprocessing, which catches it itself."""
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
    """Leaves the groups of this process, or, if it fails, ends their threads only: the process is
    then missed."""
    from lockstep import _C

    if multiprocessing.parent_process() is None:
        return _C.leave_all_at_exit()  # Python has not told the exit code yet.
    end_of_child()
    _C.leave_all()
