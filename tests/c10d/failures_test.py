#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank that is killed, stopped, or ends by an exception is named on all other ranks, wherever in
a training that happens. Nothing is left behind, and torchrun starts the ranks again.

failures_test.py --lockstep LOCKSTEP [--rounds N] [--seed N] [--jobs N] [NAME...]
"""

import argparse
import ctypes
import functools
import itertools
import operator
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from datetime import timedelta

from forked_ranks import FORK, Ranks
from plugin_or_skip import lockstep, torch

import torch.distributed as dist  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent

sys.path.insert(0, str(HERE.parent))

from ports import free_port  # noqa: E402
from processes import is_running, soon  # noqa: E402

LATE = 20  # Seconds within which every rank has exited, even on a busy host.


# --- Ranks --------------------------------------------------------------------------------------

# The acts of ranks are generators: a rank has started after the first yield.

def train(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    while True:
        loss = model(torch.randn(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach(), dist.ReduceOp.AVG)
        yield


def layers():
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))


def train_replicas():
    return train(torch.nn.parallel.DistributedDataParallel(layers(), bucket_cap_mb=0.05))


def train_shards():
    return train(fully_shard(layers()))


def call_and_wait():
    while True:
        works = [dist.all_reduce(torch.ones(100), async_op=True) for _ in range(3)]
        for work in works:
            work.wait()
        yield


def call_directly():
    while True:
        lockstep.all_reduce_(torch.ones(100))
        yield


def wait_for_futures():
    while True:
        future = dist.all_reduce(torch.ones(100), async_op=True).get_future()
        future.then(lambda _: None)
        future.wait()
        yield


def exchange():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    while True:
        for work in dist.batch_isend_irecv([
                dist.P2POp(dist.isend, torch.ones(1000), (rank + 1) % ranks),
                dist.P2POp(dist.irecv, torch.ones(1000), (rank - 1) % ranks)]):
            work.wait()
        yield


def make_groups():
    while True:
        group = dist.new_group()
        dist.barrier(group)
        dist.destroy_process_group(group)
        yield


def error_of(rank, folder, ranks, act, timeout):
    """Returns what a rank knows about the failure that ends act(), whose calls after the first
    yield have the timeout."""
    dist.init_process_group("lockstep", init_method=f"file://{folder}/store", rank=rank,
                            world_size=ranks, timeout=timedelta(seconds=60))
    try:
        for _ in act():
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout))
            (folder / f"under_way.{rank}").touch()
    except lockstep.Error as error:
        assert isinstance(error, dist.DistBackendError)
        return {"fault": error.fault, "rank": error.rank, "ranks": error.ranks, "pid": error.pid,
                "signal": error.signal, "what": error.what, "text": str(error),
                "at": time.monotonic()}
    return None


# --- Scenarios ----------------------------------------------------------------------------------

def started(folder, count, act, timeout=60):
    ranks = Ranks(count, error_of, folder, count, act, timeout)
    soon(lambda: len(list(folder.glob("under_way.*"))) >= count)
    return ranks


def survivors(ranks, victim):
    """Returns what the other ranks know, by rank."""
    deadline = time.monotonic() + LATE
    known = {}
    for rank in range(len(ranks.processes)):
        if rank != victim:
            ended = ranks.end(rank, deadline)
            assert not ended.error and ended.exit_code == 0, f"rank {rank}: {ended}"
            assert ended.value, f"rank {rank} ended without an error"
            known[rank] = ended.value
    return known


def kill(folder, act):
    """Kills a rank at a random moment. Returns the seconds until the last rank detected it."""
    with started(folder, 3, act) as ranks:
        time.sleep(random.uniform(0, 0.3))
        victim = random.randrange(3)
        killed = time.monotonic()
        os.kill(ranks.pid(victim), signal.SIGKILL)
        for known in survivors(ranks, victim).values():
            assert known["fault"] == "peer_lost", known
            assert known["rank"] == victim and known["signal"] == signal.SIGKILL, known
            assert known["pid"] == ranks.pid(victim), known
            assert f"rank {victim} " in known["text"] and "SIGKILL" in known["text"], known
            seconds = known["at"] - killed
    return seconds


def test_killed(options):
    for act in (train_replicas, train_shards, call_and_wait, call_directly, wait_for_futures,
                exchange, make_groups):
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                seconds = kill(pathlib.Path(folder), act)
            print(f"killed in {act.__name__}: named after {seconds:.2f} s", flush=True)


def test_stopped(_):
    """A stopped rank is named when a call times out. Afterwards it gets the failure itself."""
    with tempfile.TemporaryDirectory() as name:
        with started(pathlib.Path(name), 3, train_replicas, timeout=4) as ranks:
            os.kill(ranks.pid(1), signal.SIGSTOP)
            for known in survivors(ranks, victim=1).values():
                assert known["fault"] in ("timeout", "peer_lost", "aborted"), known
                assert known["rank"] == 1, known
            os.kill(ranks.pid(1), signal.SIGCONT)
            late = ranks.end(1, time.monotonic() + LATE)
            assert late.value, f"the stopped rank ended with {late}"


def disagree():
    yield
    if dist.get_rank() == dist.get_world_size() - 1:
        dist.broadcast(torch.ones(10), 0)
    else:
        dist.all_reduce(torch.ones(10))


def differ_in_shape():
    yield
    dist.all_reduce(torch.ones(11 if dist.get_rank() == 2 else 10))


def test_mismatch(_):
    for act in (disagree, differ_in_shape):
        with tempfile.TemporaryDirectory() as name:
            with started(pathlib.Path(name), 3, act) as ranks:
                for known in survivors(ranks, victim=None).values():
                    assert known["fault"] == "mismatch" and known["ranks"] == [2], known


def leave_early():
    """The last rank exits in order while the others still wait for it."""
    yield
    if dist.get_rank() < 2:
        dist.all_reduce(torch.ones(10))
    else:
        dist.destroy_process_group()
        raise SystemExit


def leave_ring():
    """The last rank exits in order while its neighbours still wait for its messages."""
    for _ in zip(range(3), exchange()):
        pass
    yield
    if dist.get_rank() < 2:
        yield from exchange()
    dist.destroy_process_group()
    raise SystemExit


def test_left(_):
    """All others name the rank that has left, even if they wait for another rank, which has left
    because of it."""
    for act in (leave_early, leave_ring):
        with tempfile.TemporaryDirectory() as name:
            with started(pathlib.Path(name), 3, act) as ranks:
                known = survivors(ranks, victim=2).values()
                assert all(re.search("rank 2 .*left", one["text"]) for one in known), known
                assert all(one["rank"] == 2 for one in known), known


def exit_codes_of(count, act, folder):
    """Runs act(rank, folder) in processes of multiprocessing."""
    ranks = [FORK.Process(target=act, args=(rank, folder)) for rank in range(count)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(LATE)
    return [process.exitcode for process in ranks]


def exit_with_code(rank, folder):
    dist.init_process_group("lockstep", init_method=f"file://{folder}/store", rank=rank,
                            world_size=3)
    dist.barrier()
    if rank == 1:
        sys.exit(3)
    try:
        for _ in exchange():
            pass
    except lockstep.Error as error:
        (pathlib.Path(folder) / f"error.{rank}").write_text(f"{error.rank} {error.exit_code}")
        raise


def test_exit_code_in_process(_):
    """A process of multiprocessing that ends by sys.exit(3) is named by all others."""
    with tempfile.TemporaryDirectory() as folder:
        codes = exit_codes_of(3, exit_with_code, folder)
        told = [(pathlib.Path(folder) / f"error.{rank}").read_text() for rank in (0, 2)]
    assert codes == [1, 3, 1] and told == ["1 3", "1 3"], (codes, told)


def wait_alone():
    """The first rank waits; the other one is alive, outside of any call."""
    yield
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(10))
    time.sleep(3600)


def test_interrupted(_):
    """Ctrl-C and SIGTERM end a rank that waits for another one."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with tempfile.TemporaryDirectory() as name:
            with started(pathlib.Path(name), 2, wait_alone) as ranks:
                time.sleep(0.2)
                os.kill(ranks.pid(0), number)
                ended = ranks.end(0, time.monotonic() + LATE)
                assert ended.exit_code == -number or "KeyboardInterrupt" in ended.error, ended


def interrupted_before_a_call():
    """Python has not raised KeyboardInterrupt yet when the call starts, because no line of
    Python comes in between."""
    yield
    if dist.get_rank() == 0:
        libc = ctypes.PyDLL(None)
        options = dist.distributed_c10d.BarrierOptions()
        options.asyncOp = False
        barrier = dist.group.WORLD._get_backend(torch.device("cpu")).barrier
        acts = (functools.partial(getattr(libc, "raise"), signal.SIGINT),
                functools.partial(libc.usleep, 200_000), functools.partial(barrier, options))
        list(map(operator.methodcaller("__call__"), acts))
    time.sleep(3600)


def test_interrupted_before_a_call(_):
    with tempfile.TemporaryDirectory() as name:
        with started(pathlib.Path(name), 2, interrupted_before_a_call) as ranks:
            ended = ranks.end(0, time.monotonic() + LATE)
            assert "KeyboardInterrupt" in ended.error, ended


def until_asleep(*pids):
    """Waits until the main threads have been seen asleep for half a second, as in a wait. A thread
    that gets no CPU is not asleep."""
    deadline, seen = time.monotonic() + LATE, 0
    while seen < 50 and time.monotonic() < deadline:
        stats = [pathlib.Path(f"/proc/{pid}/task/{pid}/stat").read_text() for pid in pids]
        seen += all(stat.rpartition(")")[2].split()[0] == "S" for stat in stats)
        time.sleep(0.01)


def make_world_alone(folder, rank):
    if rank == 0:
        (folder / "under_way.0").touch()
        dist.init_process_group("lockstep", init_method=f"file://{folder}/store", rank=0,
                                world_size=2)


def make_group_alone(folder, rank, **options):
    dist.init_process_group("lockstep", init_method=f"file://{folder}/store", rank=rank,
                            world_size=2)
    if rank == 0:
        (folder / "under_way.0").touch()
        dist.new_group([0, 1], **options)
    else:
        dist.all_reduce(torch.ones(1))


def make_other_world_alone(folder, rank):
    make_group_alone(folder, rank, pg_options=lockstep.Options(transport="shm"))


def act_in(rank, folder, act):
    act(folder, rank)
    time.sleep(3600)


def test_interrupted_while_a_group_is_made(_):
    """Ctrl-C does not wait for the rank that is missing."""
    for act in (make_world_alone, make_group_alone, make_other_world_alone):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            with Ranks(2, act_in, folder, act) as ranks:
                assert soon((folder / "under_way.0").exists), act.__name__
                until_asleep(ranks.pid(0), ranks.pid(1))
                os.kill(ranks.pid(0), signal.SIGINT)
                ended = ranks.end(0, time.monotonic() + LATE)
                assert "KeyboardInterrupt" in ended.error, (act.__name__, ended)
                if act is make_group_alone:
                    other = ranks.end(1, time.monotonic() + LATE)
                    assert "interrupted by SIGINT" in other.error, other


def raise_in_process(rank, folder):
    """Runs in a process of multiprocessing, which prints exceptions itself."""
    dist.init_process_group("lockstep", init_method=f"file://{folder}/store", rank=rank,
                            world_size=2)
    dist.barrier()
    if rank == 1:
        raise ValueError("the loss is nan")
    try:
        dist.all_reduce(torch.ones(1))
    except lockstep.Error as error:
        (pathlib.Path(folder) / "what").write_text(str(error.what))


def test_exception_in_process(_):
    with tempfile.TemporaryDirectory() as folder:
        codes = exit_codes_of(2, raise_in_process, folder)
        told = (pathlib.Path(folder) / "what").read_text()
    assert codes == [0, 1] and told == "ValueError: the loss is nan", (codes, told)


# --- Launchers ----------------------------------------------------------------------------------

def launch(folder, *command):
    """Runs a launcher of failing_program.py. Returns its exit code and its whole output."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=180,
                          env=os.environ | {"FOLDER": str(folder), "OMP_NUM_THREADS": "1",
                                            "LOCKSTEP_LOG": "info"})
    return done.returncode, done.stdout


def fail_under_lockstep(folder, options, *words):
    return launch(folder, options.lockstep, "run", "-n", 2, sys.executable,
                  HERE / "failing_program.py", "--always", *words)


def test_exception(options):
    """`lockstep run` prints the traceback of the rank that failed first; the others name it."""
    with tempfile.TemporaryDirectory() as folder:
        code, text = fail_under_lockstep(folder, options)
        told = (pathlib.Path(folder) / "error.0").read_text()
    assert code != 0, text
    assert re.search(r"rank 1.*ValueError: the loss is nan", text), text
    assert 'raise ValueError("the loss is nan")' in text, f"no traceback in:\n{text}"
    assert "rank 1" in told and "ValueError: the loss is nan" in told, told


def test_exception_while_a_call_waits(options):
    """Neither the call nor its callback delays the exit of the process."""
    with tempfile.TemporaryDirectory() as folder:
        code, text = fail_under_lockstep(folder, options, "--busy")
    assert code == 1 and "ValueError: the loss is nan" in text, (code, text)


def test_restart(_):
    """torchrun restarts the ranks after a failure. Gloo then finds the keys of its first
    attempt."""
    with tempfile.TemporaryDirectory() as folder:
        code, text = launch(folder, sys.executable, "-m", "torch.distributed.run", "--standalone",
                            "--max-restarts", 1, "--nproc-per-node", 2, HERE / "failing_program.py")
        assert code == 0, text
        for rank in range(2):
            assert (pathlib.Path(folder) / f"done.{rank}").read_text() == "3.0", text


def pids_of(launcher, folder, count):
    """Returns the process ids of a launcher's ranks, by rank, when they have started."""
    while launcher.poll() is None:
        told = [file.read_text() for file in sorted(folder.glob("pid.*"))]
        if len(told) == count and all(told):
            return [int(pid) for pid in told]
        time.sleep(0.01)
    raise AssertionError(f"the launcher has ended with {launcher.returncode}")


def end_of_training(command, number):
    """Sends a signal to a random rank of a training at a random moment. Returns that rank, and
    what the others knew: fault, rank and signal, and after how many seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = os.environ | {"FOLDER": name, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen([*map(str, command), HERE / "failing_program.py", "--train"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, env=environment) as launcher:
            try:
                pids = pids_of(launcher, folder, 3)
                time.sleep(random.uniform(0, 0.3))
                victim, sent = random.randrange(3), time.monotonic()
                os.kill(pids[victim], number)
                code = launcher.wait(120)
            finally:
                launcher.kill()  # Wherever it has exited.
        assert code != 0
        assert not [pid for pid in pids if is_running(pid)], "a rank is left"
        told = [file.read_text().splitlines()[0].split() for file in folder.glob("error.*")]
    return victim, [(*known, float(at) - sent) for *known, at in told]


def test_signals_under_launchers(options):
    """A launcher that kills the other ranks at once may do so before they have reported
    anything. It has no information about a stopped rank before a rank reports it."""
    launchers = {
        "lockstep": [options.lockstep, "run", "-n", 3, sys.executable],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone",
                     "--nproc-per-node", 3],
    }
    for name, command in launchers.items():
        for number in [signal.SIGKILL, signal.SIGSTOP] * options.rounds:
            victim, told = end_of_training(command, number)
            expected = {signal.SIGKILL: ["peer_lost", str(victim), str(int(number))],
                        signal.SIGSTOP: ["timeout", str(victim), "None"]}[number]
            assert told or number == signal.SIGKILL, "nobody has named the rank"
            for *known, _ in told:
                assert known == expected, (told, expected)
            seconds = max((at for *_, at in told), default=0)
            print(f"{name}, rank {victim}, {number.name}: named by {len(told)} after "
                  f"{seconds:.2f} s", flush=True)


def fields_of(line):
    return dict(word.split("=", 1) for word in line.split("lockstep-fail ", 1)[1].split())


def end_under_lockstep(options, count, *words):
    """Runs ending_program.py. Returns the launcher's exit code, its failure record, those of the
    ranks, and each rank's fault, rank, exit code and seconds until then."""
    with tempfile.TemporaryDirectory() as folder:
        code, text = launch(folder, options.lockstep, "run", "-n", count, sys.executable,
                            HERE / "ending_program.py", *words)
        told = {int(file.suffix[1:]): file.read_text().splitlines()[0].split()
                for file in pathlib.Path(folder).glob("error.*")}
    lines = [line for line in text.splitlines() if "lockstep-fail job=" in line]
    of_launcher = [fields_of(line) for line in lines if line.startswith("lockstep run: ")]
    assert len(of_launcher) == 1, text
    of_ranks = [fields_of(line) for line in lines if not line.startswith("lockstep run: ")]
    assert told, text
    print(f"{count} ranks, {' '.join(words)}: {of_launcher[0]['cause']}, rank "
          f"{of_launcher[0]['rank']}, named by {len(told)}", flush=True)
    return code, of_launcher[0], of_ranks, told


def test_launcher_names_who_differs(options):
    """`lockstep run` names the same ranks as the ranks do, not the first one that exited by the
    exception. All of them use the launcher's name of the job."""
    for count in (2, 3):
        for number, how in enumerate(("timeout", "operation", "size", "type")):
            caught = ["--caught"] if (count + number) % 2 else []
            code, launcher, ranks, told = end_under_lockstep(options, count, *caught, how)
            is_late = how == "timeout"
            culprits = "0+1" if count == 2 and not is_late else str(count - 1)
            for record in (launcher, *ranks):
                assert record["cause"] == ("timeout" if is_late else "mismatch"), record
                assert record["waits_for" if is_late else "differ"] == culprits, record
                assert record["rank"] == culprits[0] and record["job"] == launcher["job"], record
            assert code == (5 if caught else 1), code
            for fault, rank, *_ in told.values():
                assert (fault, rank) == (launcher["cause"], culprits[0]), told


def test_names_who_came_too_late(options):
    """All ranks in init_process_group() name those that are missing, and so does `lockstep run`.
    This holds even for rank 0, which serves PyTorch's store to the others."""
    for count, victim, caught in [(4, "1", []), (3, "2", ["--caught"]), (3, "0", []),
                                  (2, "0", ["--caught"])]:
        code, launcher, ranks, told = end_under_lockstep(options, count, *caught, "late", victim)
        for record in (launcher, *ranks):
            assert (record["cause"], record["waits_for"]) == ("timeout", victim), record
            assert record["rank"] == victim and record["job"] == launcher["job"], record
        assert code == (5 if caught else 1) and len(ranks) == len(told) == count - 1, (code, told)
        for fault, rank, *_ in told.values():
            assert (fault, rank) == ("timeout", victim), told


def test_another_server_where_the_store_should_be(options):
    """Ranks that cannot use the server at the store's address exit in time, and report the
    reason. A rank with a longer timeout reports the other's reason. Rank 0 did not come."""
    for how, reason in (("closes", "Broken pipe|Connection reset"), ("silent", "does not answer")):
        with tempfile.TemporaryDirectory() as name:
            code, text = launch(name, options.lockstep, "run", "-n", 3, sys.executable,
                                HERE / "ending_program.py", "foreign", how)
            told = [file.read_text() for file in pathlib.Path(name).glob("error.*")]
        assert code == 1 and len(told) == 2, text
        for lines in told:
            known, message = lines.split("\n", 1)
            fault, rank, _, waited = known.split()
            # Less than the longer timeout, which begins when all ranks have imported torch.
            assert (fault, rank) == ("timeout", "0") and float(waited) < 2 * LATE, lines
            assert re.search(f"the last try to reach it: .*({reason})", message), lines


def test_names_who_fails_after_others_were_late(options):
    for victim in ("1", "0"):
        with tempfile.TemporaryDirectory() as folder:
            code, text = launch(folder, options.lockstep, "run", "-n", 3, sys.executable,
                                HERE / "ending_program.py", "late", victim, "goes-on")
        line, = (line for line in text.splitlines()
                 if line.startswith("lockstep run: lockstep-fail"))
        record = fields_of(line)
        assert code == 1 and record["cause"] == "exit:1" and record["rank"] != victim, text


def test_store_ends_with_rank_0(options):
    """Ranks that wait in the store get the reason for the exit of rank 0 from the launcher."""
    code, launcher, ranks, told = end_under_lockstep(options, 4, "dies")
    for record in (launcher, *ranks):
        assert (record["rank"], record["cause"]) == ("0", "signal:14(SIGALRM)"), record
    assert code == 128 + signal.SIGALRM and sorted(told) == [1, 2], (code, told)
    for fault, rank, *_ in told.values():
        assert (fault, rank) == ("peer_lost", "0"), told


def test_launcher_names_who_left(options):
    """If a rank exits by sys.exit(), all others name it, and not the neighbour that exited
    because it was missing. The launcher exits with its code."""
    for count, what, how in [(3, "ring", "3"), (3, "ring", "0"), (3, "ring", "destroy"),
                             (2, "ring", "3"), (2, "ring", "0"), (3, "reduce", "3"),
                             (3, "reduce", "0"), (2, "reduce", "3"), (2, "reduce", "destroy")]:
        code, launcher, ranks, told = end_under_lockstep(options, count, what, how)
        fails = how == "3"
        for record in (launcher, *ranks):
            assert record["rank"] == "1" and record["job"] == launcher["job"], record
            assert record["cause"] == ("exit:3" if fails else "left"), record
        assert code == (3 if fails else 1), code
        for fault, rank, exit_code, _ in told.values():
            expected = ("peer_lost", "1", "3" if fails else "None")
            assert (fault, rank, exit_code) == expected, told


def test_messages_outlive_their_sender(options):
    """Messages of rank 0 are received after its process has exited, also between hosts."""
    launchers = {"lockstep run": (options.lockstep, "run", "-n", 3),
                 "torchrun": (sys.executable, "-m", "torch.distributed.run", "--standalone",
                              "--no-python", "--nproc-per-node", 3)}
    for name, launcher in launchers.items():
        for hosts in ((), ("aab",), ("abb",)):
            with tempfile.TemporaryDirectory() as folder:
                code, text = launch(folder, *launcher, sys.executable, HERE / "sending_program.py",
                                    *hosts)
            assert code == 0, f"{name} {hosts}:\n{text}"


def test_launcher_names_who_goes_on(options):
    """A rank that continues after an Error and then fails is named, not the rank in the Error."""
    code, launcher, _, told = end_under_lockstep(options, 3, "go-on", "3")
    assert (launcher["rank"], launcher["cause"], code) == ("0", "exit:3", 3), launcher
    for fault, rank, exit_code, _ in told.values():
        assert (fault, rank, exit_code) == ("peer_lost", "0", "3"), told


def without_launcher(variables, *words):
    """Runs ending_program.py with the variables of each rank. Returns the output of all ranks,
    and what each one got: fault, rank, exit code."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        common = os.environ | {"FOLDER": name, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
                               "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(variables)),
                               "LOCKSTEP_TRUST_NETWORK": "1", "LOCKSTEP_LOG": "info"}
        with (folder / "output").open("w") as output:
            ranks = [subprocess.Popen([sys.executable, HERE / "ending_program.py", *words],
                                      env=common | {"RANK": str(rank)} | own,
                                      stdout=output, stderr=output)
                     for rank, own in enumerate(variables)]
            try:
                for rank in ranks:
                    rank.wait(120)
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()
        return (folder / "output").read_text(), {
            int(file.suffix[1:]): file.read_text().splitlines()[0].split()[:3]
            for file in folder.glob("error.*")}


def test_other_hosts_name_who_left_first(_):
    """Rank 2 waits for rank 0, which exits with its own code because rank 1 of its host has
    left."""
    for how, caught in itertools.product(("0", "destroy"), (["--caught"], [])):
        hosts = [{"LOCKSTEP_HOST_ID": host} for host in ("a", "a", "b")]
        _, told = without_launcher(hosts, *caught, "chain", how)
        assert told == {0: ["peer_lost", "1", "None"], 2: ["peer_lost", "1", "None"]}, told


def jobs_in(text):
    return [fields_of(line)["job"] for line in text.splitlines() if "lockstep-fail job=" in line]


def test_id_of_the_job(_):
    """Failure records of ranks contain the complete job id from torchrun."""
    job = str(uuid.uuid4())  # As torchrun makes one.
    with tempfile.TemporaryDirectory() as folder:
        code, text = launch(folder, sys.executable, "-m", "torch.distributed.run",
                            "--nproc-per-node", 2, "--rdzv-backend", "c10d",
                            "--rdzv-endpoint", "localhost:0", "--rdzv-id", job,
                            HERE / "ending_program.py", "reduce", "3")
    jobs = jobs_in(text)
    assert code != 0 and jobs, text
    end = f"TORCHELASTIC_RUN_ID%3D{job}%20TORCHELASTIC_RESTART_COUNT%3D0"
    assert all(said.endswith(end) for said in jobs), text


def test_id_of_the_job_under_srun(_):
    """All ranks use one name for the job."""
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "3",
            "SLURM_STEP_TASKS_PER_NODE": "3", "SLURM_STEP_NODELIST": "localhost"}
    text, _ = without_launcher(
        [step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(3)],
        "reduce", "0")
    jobs = jobs_in(text)
    assert len(jobs) == 2 and len(set(jobs)) == 1 and "MASTER_PORT" in jobs[0], text


def test_id_of_the_job_under_mpirun(_):
    if not shutil.which("mpirun"):
        return print("skipped: there is no mpirun (Debian's package openmpi-bin)")
    script = ("RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE MASTER_ADDR=127.0.0.1 "
              '"$0" "$@"; code=$?; touch "$FOLDER/ended.$OMPI_COMM_WORLD_RANK"; '
              # mpirun kills the others as soon as one has failed.
              'until [ -e "$FOLDER/ended.0" ] && [ -e "$FOLDER/ended.1" ] && '
              '[ -e "$FOLDER/ended.2" ]; do sleep 0.01; done; exit $code')
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        code, text = launch(folder, "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 3,
                            "env", f"MASTER_PORT={port}", "/bin/sh", "-c", script, sys.executable,
                            HERE / "ending_program.py", "reduce", "0")
    jobs = jobs_in(text)
    assert code != 0 and len(jobs) == 2 and len(set(jobs)) == 1, text
    assert f"MASTER_PORT%3D{port}" in jobs[0], jobs


def test_ends_before_its_group(options):
    """If a rank exits before init_process_group(), waiting ranks are notified by the launcher,
    also in PyTorch's own store."""
    for count, what in [(2, "early"), (2, "first"), (3, "early"), (3, "first")]:
        code, launcher, ranks, told = end_under_lockstep(options, count, what, "0")
        victim = "0" if what == "first" else str(count - 1)
        for record in (launcher, *ranks):
            assert (record["rank"], record["cause"]) == (victim, "exit:0"), record
            assert record["job"] == launcher["job"], record
        assert code == 1 and len(ranks) == len(told), (code, ranks, told)
        for fault, rank, exit_code, waited in told.values():
            assert (fault, rank, exit_code) == ("peer_lost", victim, "0"), told
            assert float(waited) < LATE, told


def test_ends_between_groups(options):
    """The same for ranks that wait in the next init_process_group() for a rank that has left the
    last group in order."""
    for victim, how in itertools.product(("0", "1"), ("0", "3", "raise")):
        code, launcher, ranks, told = end_under_lockstep(options, 3, "between", victim, how)
        expected = {"raise": "1"}.get(how, how)
        for record in (launcher, *ranks):
            assert (record["rank"], record["cause"]) == (victim, f"exit:{expected}"), record
        assert code == max(1, int(expected)), code
        assert len(ranks) == len(told) == 2, (ranks, told)
        for fault, rank, exit_code, waited in told.values():
            assert (fault, rank, exit_code) == ("peer_lost", victim, expected), told
            assert float(waited) < LATE, told


def test_next_group_of_early_ranks(options):
    """Ranks may create the next group of the job while rank 0 is still in the last one.
    PyTorch's store prints nothing about it. Rank 0 then serves the store until it exits."""
    hows = ["lockstep", "lockstep", "gloo", "held", "held", "gloo", "lockstep"]
    with tempfile.TemporaryDirectory() as folder:
        code, text = launch(folder, options.lockstep, "run", "-n", 2, sys.executable,
                            HERE / "repeated_program.py", *hows)
    assert code == 0, text
    expected = [f"[{rank}] made {how}" for rank in range(2) for how in hows]
    printed = [line for line in text.splitlines() if "lockstep info: " not in line]
    assert sorted(printed) == sorted(expected), text


def test_names_who_fails_in_a_group_of_the_rest(options):
    for how, cause in (("kill", "signal:9(SIGKILL)"), ("3", "exit:3")):
        code, launcher, _, told = end_under_lockstep(options, 3, "rest", how)
        assert (launcher["rank"], launcher["cause"]) == ("2", cause), launcher
        assert code == (3 if how == "3" else 128 + signal.SIGKILL), code
        for fault, rank, exit_code, waited in told.values():
            assert (fault, rank, exit_code) == ("peer_lost", "1", "0"), told
            assert float(waited) < LATE, told
        assert sorted(told) == [0, 2], told


# --- All ----------------------------------------------------------------------------------------

def left_behind():
    return sorted(os.listdir("/dev/shm"))


def run(names, options):
    for name in names:
        random.seed(f"{options.seed} {name}")
        begun = time.monotonic()
        globals()[name](options)
        print(f"{name}: {time.monotonic() - begun:.1f} s", flush=True)


def run_beside_each_other(names, options):
    """Most of the time is spent waiting for processes and timeouts."""
    command = [sys.executable, __file__, "--lockstep", options.lockstep,
               "--rounds", str(options.rounds), "--seed", str(options.seed)]
    parts = [subprocess.Popen([*command, "--is-part", *names[part::options.jobs]])
             for part in range(options.jobs)]
    failed = [part.args for part in parts if part.wait()]
    assert not failed, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--lockstep", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=1, help="of each kill: 1")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--jobs", type=int, default=1, help="tests that run beside each other")
    parser.add_argument("--is-part", action="store_true", help="other tests run, too")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    names = options.names or [name for name in globals() if name.startswith("test_")]
    before = left_behind()
    if options.jobs > 1:
        run_beside_each_other(names, options)
    else:
        run(names, options)
    left = set(left_behind()) - set(before)
    assert options.is_part or not left, f"left in /dev/shm: {left}"


if __name__ == "__main__":
    main()
