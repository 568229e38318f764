# SPDX-License-Identifier: Apache-2.0
"""Rank 0 of three sends messages, destroys its groups and ends. The others receive the messages
once its process is gone, and go on without it.

sending_program.py [HOSTS]: a letter for the host of each rank, such as aab. Needs FOLDER, a folder
that the ranks share."""

import os
import pathlib
import sys

import lockstep
import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from processes import is_running, soon  # noqa: E402

PID = pathlib.Path(os.environ["FOLDER"]) / "pid"
RANK = int(os.environ["RANK"])
SMALL, MEDIUM, HUGE = torch.arange(3.0), torch.full((10_000,), 4.0), torch.zeros(8_000_000)


def receive(like, source, group=None):
    received = torch.full_like(like, -1)
    dist.recv(received, source, group=group)
    assert torch.equal(received, like), received


def expect_left(call):
    try:
        call()
    except lockstep.Error as error:
        assert error.fault == "peer_lost" and "rank 0 has left group" in str(error), error
        assert "in order" in str(error), error
    else:
        raise AssertionError("rank 0 has sent no more")


def await_end_of_rank_0():
    assert soon(lambda: PID.exists() and PID.read_text() and not is_running(int(PID.read_text())))


def main():
    if len(sys.argv) > 1:
        os.environ |= {"LOCKSTEP_HOST_ID": sys.argv[1][RANK], "LOCKSTEP_TRUST_NETWORK": "1"}
    dist.init_process_group("lockstep")
    part, others = dist.new_group([0, 1]), dist.new_group([1, 2])
    if len(sys.argv) > 1:
        # Across hosts, the first all_reduce of a group needs PyTorch's store, which rank 0 serves.
        if RANK > 0:
            dist.all_reduce(torch.ones(1), group=others)
        dist.barrier()
    if RANK == 0:
        PID.write_text(str(os.getpid()))
        dist.send(SMALL, 1, group=part)
        dist.send(MEDIUM, 1)
        dist.send(SMALL, 2)
        dist.isend(HUGE, 1)  # Incomplete when this rank leaves.
        dist.destroy_process_group()
        return
    await_end_of_rank_0()
    if RANK == 1:
        receive(SMALL, 0, part)
        receive(MEDIUM, 0)
        expect_left(lambda: dist.recv(torch.empty_like(HUGE), 0))
    else:
        receive(SMALL, 0)
        expect_left(lambda: dist.recv(torch.empty_like(SMALL), 0))
    total = torch.ones(10)
    dist.all_reduce(total, group=others)
    assert torch.equal(total, torch.full((10,), 2.0)), total
    sent = dist.isend(SMALL, 3 - RANK)  # The first of the two messages.
    receive(SMALL, 3 - RANK)
    sent.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
