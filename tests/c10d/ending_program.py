# SPDX-License-Identifier: Apache-2.0
"""A program that ends early. Tests check the reports of its ranks and its launcher:

ending_program.py [--caught] timeout|operation|size|type   the last rank differs from the others
ending_program.py ring|reduce CODE|destroy                 rank 1 leaves while the others go on
ending_program.py early CODE                               the last rank ends before the group
ending_program.py first CODE                               so does rank 0
ending_program.py chain CODE|destroy                       rank 1 leaves; 0 waits for it, 2 for 0
ending_program.py between RANK CODE|raise                  that rank ends between two groups
ending_program.py rest CODE|kill                           so does rank 1; then the last fails
ending_program.py late RANK [goes-on]                      that rank comes too late to its group
ending_program.py foreign closes|silent                    rank 0 serves something else there
ending_program.py dies                                     rank 0 dies while it waits for the last
ending_program.py go-on CODE                               rank 0 goes on after a timeout, then ends

With --caught, a rank that gets an exception ends with code 5. Each rank writes its result into
error.RANK of FOLDER."""

import ctypes
import os
import pathlib
import signal
import socket
import sys
import time
from datetime import timedelta

import lockstep
import torch
import torch.distributed as dist

FOLDER = pathlib.Path(os.environ["FOLDER"])
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
IS_LAST = RANK == RANKS - 1


def await_kill():
    """Sleeps until the launcher kills this rank."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(60)


def differ(how):
    if how == "timeout":
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=3))
        if IS_LAST:
            await_kill()
    if how == "operation" and IS_LAST:
        dist.broadcast(torch.ones(10), 0)
    else:
        size = 11 if how == "size" and IS_LAST else 10
        of_type = torch.float64 if how == "type" and IS_LAST else torch.float32
        dist.all_reduce(torch.ones(size, dtype=of_type))


def ring():
    for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, torch.ones(1000), (RANK + 1) % RANKS),
            dist.P2POp(dist.irecv, torch.ones(1000), (RANK - 1) % RANKS)]):
        work.wait()


def reduce():
    dist.all_reduce(torch.ones(10))


def swap_with(peer):
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(1000), peer),
                                        dist.P2POp(dist.irecv, torch.ones(1000), peer)]):
        work.wait()


def keep_group():
    """Python does not destroy the group, as after an exception whose traceback keeps it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))


def chain():
    for peer in {0: (1, 2), 1: (0,), 2: (0,)}[RANK]:
        swap_with(peer)


def leave(how):
    if how != "destroy":
        sys.exit(int(how))
    dist.destroy_process_group()
    sys.exit()


def go_on(code):
    """A thread other than the main one runs the calls of rank 0."""
    some = dist.new_group([0, 1])
    if RANK == 0:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), some)
        late = dist.all_reduce(torch.ones(10), group=some, async_op=True)
        while not late.is_completed():
            time.sleep(0.01)
        try:
            late.wait()
        except lockstep.Error:
            pass
    work = dist.barrier(async_op=True)
    while not work.is_completed():
        time.sleep(0.01)
    work.wait()
    if RANK == 0:
        sys.exit(int(code))
    dist.barrier()


def meet():
    """Waits until all ranks have imported torch, which takes seconds on a busy host."""
    (FOLDER / f"imported.{RANK}").touch()
    while len(list(FOLDER.glob("imported.*"))) < RANKS:
        time.sleep(0.01)


def come_late(late, goes_on=None):
    meet()
    if RANK == int(late):
        await_kill()
    try:
        dist.init_process_group("lockstep", timeout=timedelta(seconds=3))
    except lockstep.Error:
        if goes_on:
            raise ValueError("something else")
        raise


def serve_nothing(how):
    """Rank 0 accepts connections at the address of its store, but does not serve one."""
    meet()
    if RANK == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with socket.create_server(("", int(os.environ["MASTER_PORT"]))) as server:
            accepted = []
            while True:  # Until the launcher kills it.
                accepted.append(server.accept()[0])
                if how == "closes":
                    accepted.pop().close()
    # The constructor of PyTorch's store fails after some 6 s. The last rank has more time: it gets
    # the other's failure.
    limit = timedelta(seconds=60 if IS_LAST else 12 if how == "closes" else 3)
    dist.init_process_group("lockstep", timeout=limit)


def die_while_waiting():
    meet()
    if IS_LAST:
        await_kill()
    if RANK == 0:
        signal.setitimer(signal.ITIMER_REAL, 3)  # Its SIGALRM kills a process.
    dist.init_process_group("lockstep")


def end_between(rank, how):
    dist.destroy_process_group()
    (FOLDER / f"left.{RANK}").touch()
    while not (FOLDER / "left.0").exists():  # Its store serves until its process ends.
        time.sleep(0.01)
    if RANK == int(rank):
        time.sleep(0.5)
        if how == "raise":
            raise ValueError("no more worlds")
        sys.exit(int(how))
    dist.init_process_group("lockstep")


def go_on_with_rest(how):
    """The remaining ranks catch the exit of rank 1, and create a group of their own."""
    dist.destroy_process_group()
    if RANK == 1:
        sys.exit()
    began = time.monotonic()
    try:
        dist.init_process_group("lockstep")
    except lockstep.Error as error:
        write(error, began)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    dist.init_process_group("lockstep", init_method=f"file://{FOLDER}/rest", rank=RANK // 2,
                            world_size=2)
    dist.barrier()
    if not IS_LAST:
        time.sleep(60)  # Until the launcher kills it.
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(how))


def write(error, began):
    waited = time.monotonic() - began
    (FOLDER / f"error.{RANK}").write_text(
        f"{error.fault} {error.rank} {error.exit_code} {waited}\n{error}")


def act(what, *how):
    if RANK == {"early": RANKS - 1, "first": 0}.get(what):
        sys.exit(int(how[0]))
    if what == "late":
        return come_late(*how)
    if what == "foreign":
        return serve_nothing(*how)
    if what == "dies":
        return die_while_waiting()
    dist.init_process_group("lockstep", timeout=timedelta(seconds=60))
    dist.barrier()
    if what == "chain":
        keep_group()
    acts = {"go-on": go_on, "between": end_between, "rest": go_on_with_rest}
    if what in acts:
        return acts[what](*how)
    exchange = {"ring": ring, "reduce": reduce, "chain": chain}.get(what)
    if exchange is None:
        return differ(what)
    for _ in range(3):
        exchange()
    if RANK == 1:
        leave(*how)
    while True:
        exchange()


def main():
    # 0.5 s after a failure, the launcher sends SIGTERM to ranks that have not reported it yet.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    caught = "--caught" in sys.argv
    began = time.monotonic()
    try:
        act(*[word for word in sys.argv[1:] if word != "--caught"])
    except lockstep.Error as error:
        write(error, began)
        if caught:
            sys.exit(5)
        raise


if __name__ == "__main__":
    main()
