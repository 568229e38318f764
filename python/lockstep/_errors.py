# SPDX-License-Identifier: Apache-2.0
"""The exception of all operations of a group."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed import DistBackendError


class Error(DistBackendError):
    """An operation failed; the message tells what happened, and on which rank.

    fault      What to do about it: "misuse", "mismatch" (ranks call different things),
               "unsupported", "timeout", "peer_lost" (a rank died or left), "aborted", "corrupt",
               "system" or "bug".
    ranks      The ranks of the group that caused a timeout or a mismatch.
    rank       The rank of the job that was lost, or the first one of `ranks`; None when unknown.
    host, pid  Its host and its process.
    signal     The signal that ended it, and
    exit_code  the code with which it exited; None when it did not, or nobody knows.
    operation  Its last operation, such as "all_reduce".
    what       The exception that ended it, such as "ValueError: the loss is nan".
    """

    fault: str
    ranks: list[int]
    rank: int | None
    host: str
    pid: int | None
    signal: int | None
    exit_code: int | None
    operation: str
    what: str

    def __init__(
        self,
        message: str,
        *,
        fault: str = "bug",
        ranks: Sequence[int] = (),
        rank: int | None = None,
        host: str = "",
        pid: int | None = None,
        signal: int | None = None,
        exit_code: int | None = None,
        operation: str = "",
        what: str = "",
    ) -> None:
        super().__init__(message)
        self.fault = fault
        self.ranks = list(ranks)
        self.rank = rank
        self.host = host
        self.pid = pid
        self.signal = signal
        self.exit_code = exit_code
        self.operation = operation
        self.what = what


Error.__module__ = "lockstep"
