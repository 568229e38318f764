# SPDX-License-Identifier: Apache-2.0
"""The exception of all operations of a group."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed import DistBackendError


class Error(DistBackendError):
    """An operation failed. The message explains the failure and names the rank.

    fault      What to do about it: "misuse", "mismatch" (ranks call different things),
               "unsupported", "timeout", "peer_lost" (a rank died or left), "aborted", "corrupt",
               "system" or "bug".
    ranks      The ranks of the group that caused a timeout or a mismatch.
    rank       The job's rank that was lost, or the first one of `ranks`; None if unknown.
    host, pid  The host and the process of this rank.
    signal     The signal that killed it; None if there was none or it is unknown.
    exit_code  The code with which it exited; None if it did not exit or it is unknown.
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
