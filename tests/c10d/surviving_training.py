# SPDX-License-Identifier: Apache-2.0
"""A training that survives the death of ranks, and notes what it does, like
tests/launch/surviving_training.cpp."""

import argparse
import os
import pathlib
import signal
import sys
import time
import zlib
from datetime import timedelta

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import lockstep


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", type=pathlib.Path, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--pause-ms", type=int, default=0)
    parser.add_argument("--timeout-ms", type=int, default=300_000)
    parser.add_argument("--patience-ms", type=int, default=30_000)
    parser.add_argument("--sharded", action="store_true", help="by fully_shard()")
    parser.add_argument("--checkpoints", type=pathlib.Path)
    parser.add_argument("--every", type=int, default=100)
    return parser.parse_args()


class Position:
    """The place in the data: an order for each epoch, and how many samples of it are used."""

    def __init__(self, samples):
        self.samples, self.epoch, self.used = samples, 0, 0

    def state_dict(self):
        return {"epoch": self.epoch, "used": self.used}

    def load_state_dict(self, state):
        self.epoch, self.used = state["epoch"], state["used"]

    def draw(self, batch):
        """Returns this rank's samples, and those of all ranks."""
        if self.used == self.samples:
            self.epoch, self.used = self.epoch + 1, 0
        order = torch.randperm(self.samples, generator=torch.Generator().manual_seed(self.epoch))
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        drawn = order[self.used:self.used + batch * size]
        own = drawn[rank::size]
        return own.tolist() or drawn[:1].tolist(), len(drawn)


def make_net(shard=False):
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32),
                              torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
    if shard:
        fully_shard(net, mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
    return net, torch.optim.Adam(net.parameters(), lr=0.01)


def main():
    signal.signal(signal.SIGUSR2, lambda *_: os._exit(3))
    options = parse_options()
    torch.set_num_threads(1)
    net, adam = make_net()
    position = Position(options.samples)
    parallel, drawn = None, 0

    def set_up():
        nonlocal net, adam, parallel
        if options.sharded:
            net, adam = make_net(shard=True)
        parallel = net if options.sharded else DistributedDataParallel(net)
        return {"model": net, "optimizer": adam, "position": position}

    notes = open(options.notes / str(os.getpid()), "a")
    survival = lockstep.Survival(set_up, timeout=timedelta(milliseconds=options.timeout_ms),
                                 patience=timedelta(milliseconds=options.patience_ms),
                                 checkpoints=options.checkpoints, every=options.every)

    def compute():
        nonlocal drawn
        own, drawn = position.draw(options.batch)
        print("draw", position.epoch, survival.steps, survival.changes, *own, file=notes,
              flush=True)
        data = torch.sin(torch.arange(8) * (0.1 + 0.37 * torch.tensor(own).unsqueeze(1)))
        net.zero_grad()
        (parallel(data) - data.sum(1, keepdim=True)).square().mean().backward()
        time.sleep(options.pause_ms / 1000)

    def apply():
        adam.step()
        position.used += drawn

    while position.epoch < options.epochs - 1 or position.used < options.samples:
        if not survival.step(compute, apply):
            sys.exit(75)
        weights = 0
        for parameter in [] if options.sharded else net.parameters():
            weights = zlib.crc32(parameter.detach().numpy().tobytes(), weights)
        print("done", survival.steps - 1, survival.changes, torch.distributed.get_world_size(),
              weights, time.monotonic_ns(), file=notes, flush=True)
    survival.finish()


if __name__ == "__main__":
    main()
