#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks on two hosts: every operation gives Gloo's bits through each engine, with one and with two
ranks on a host. A rank that is killed is named on the other host. A job of torchrun with one rank
on each host finds its peers.

hosts_test.py --engines FOLDER    the folder with the engines that were built
"""

import argparse
import base64
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

import against_gloo_test
import forked_ranks
from plugin_or_skip import SKIPPED, lockstep, torch

import torch.distributed as dist  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "hosts"))

import network_hosts  # noqa: E402

RANKS_PER_HOST = 2
PATIENCE = 200  # Seconds for the whole test on a busy machine.
TORCHRUN_PORT = 29400
FIRST_PORT = 29500  # For the worlds' stores.


# --- On a host ----------------------------------------------------------------------------------

def check(group):
    """All operations of a group, except those of torch.distributed.nn, which are composed of
    them."""
    groups = against_gloo_test.Groups(group, dist.get_process_group_ranks(group))
    cases = against_gloo_test.check_moves(groups) + against_gloo_test.check_reductions(groups)
    checks = [check for check in against_gloo_test.CHECKS
              if check is not against_gloo_test.check_gradients]
    for check_one in checks:
        check_one(groups)
    return cases + len(checks)


def train():
    """The ranks' weights stay equal."""
    torch.manual_seed(dist.get_rank())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    for _ in range(5):
        model(torch.randn(8, 64)).square().mean().backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.1 * weight.grad
    mine = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    for weights in dist.nn.all_gather(mine):
        assert torch.equal(weights, mine)


def lose_last_rank():
    """Returns what this rank knows about the last one, which is killed."""
    last = dist.get_world_size() - 1
    dist.barrier()
    if dist.get_rank() == last:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(torch.ones(1000))
    except lockstep.Error as error:
        assert error.fault == "peer_lost" and error.rank == last, error
        assert error.signal == signal.SIGKILL and error.host == "node2", error


def rank_on_host(local_rank, host, transports):
    rank, size = host * RANKS_PER_HOST + local_rank, 2 * RANKS_PER_HOST
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "node1"}
    for number, transport in enumerate(transports):
        # In a shared store, Gloo would find its addresses of the previous world.
        os.environ["MASTER_PORT"] = str(FIRST_PORT + number)
        options = lockstep.Options(transport=f"shm+{transport}")
        dist.init_process_group("lockstep", pg_options=options)
        train()
        text = f"{transport}: {check(dist.group.WORLD)} cases on 2 + 2 ranks"
        pair = dist.new_group([0, RANKS_PER_HOST], pg_options=lockstep.Options(transport=transport))
        if local_rank == 0:
            text += f", {check(pair)} on 1 + 1"
        if rank == 0:
            print(text, flush=True)
        if transport == transports[-1]:
            lose_last_rank()
        else:
            dist.destroy_process_group()


def run_host(host, transports):
    with forked_ranks.Ranks(RANKS_PER_HOST, rank_on_host, host, transports) as ranks:
        ends = ranks.ends(PATIENCE)
    if host == 1:
        assert ends.pop().exit_code == -signal.SIGKILL
    for ended in ends:
        assert not ended.error and ended.exit_code == 0, ended.error or ended


def rank_of_torchrun():
    """The only rank of its host."""
    assert (os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]) == ("0", "1"), os.environ
    dist.init_process_group("lockstep")
    hosts = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    assert sorted(hosts) == ["node1", "node2"], hosts
    numbers = torch.arange(1000) + dist.get_rank()
    dist.all_reduce(numbers)
    assert torch.equal(numbers, 2 * torch.arange(1000) + 1), numbers
    dist.destroy_process_group()


# --- All ----------------------------------------------------------------------------------------

def start(host, folder, words, variables=(), **options):
    environment = os.environ | {"LOCKSTEP_JOB_TOKEN_FILE": str(folder / "token")} | dict(variables)
    return host.popen([sys.executable, *words], env=environment, **options)


def check_torchrun(hosts, folder):
    words = ["-m", "torch.distributed.run", "--nnodes", len(hosts), "--nproc-per-node", 1,
             "--rdzv-backend", "c10d", "--rdzv-id", "job",
             "--rdzv-endpoint", f"{hosts[0].address}:{TORCHRUN_PORT}",
             __file__, "--under-torchrun"]
    started = [start(host, folder, words, {"LOCKSTEP_LOG": "info"}, stdout=subprocess.PIPE,
                     stderr=subprocess.STDOUT, text=True) for host in hosts]
    for process in started:
        said = process.communicate(timeout=PATIENCE)[0]
        assert process.returncode == 0, said
        # The rank's log line about its world.
        assert "(2 ranks on 2 hosts; by eth0 " in said, said


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=pathlib.Path)
    parser.add_argument("--host", type=int, help="run the ranks of this host")
    parser.add_argument("--under-torchrun", action="store_true", help="be a rank of torchrun's")
    parser.add_argument("transports", nargs="*")
    options = parser.parse_args()
    if options.host is not None:
        return run_host(options.host, options.transports)
    if options.under_torchrun:
        return rank_of_torchrun()
    if network_hosts.why_not():
        print(f"skipped: {network_hosts.why_not()}")
        sys.exit(SKIPPED)
    has_gloo = (options.engines / "liblockstep-engine-gloo.so").exists()
    transports = ["gloo", "torch"] if has_gloo else ["torch"]
    with tempfile.TemporaryDirectory() as name, network_hosts.Hosts(2) as hosts:
        folder = pathlib.Path(name)
        (folder / "token").touch(mode=0o600)
        (folder / "token").write_text(base64.b64encode(os.urandom(32)).decode())
        check_torchrun(hosts, folder)
        started = [start(host, folder, [__file__, "--host", number, *transports])
                   for number, host in enumerate(hosts)]
        codes = [process.wait(PATIENCE + 60) for process in started]
    assert codes == [0, 0], codes


if __name__ == "__main__":
    main()
