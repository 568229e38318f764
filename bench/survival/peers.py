#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of the benchmark of survival: DDP with Gloo under torchrun, which restarts all
ranks. Rank 0 saves a checkpoint every few steps. Notes as tests/launch/surviving_training.cpp."""

import argparse
import os
import pathlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", type=pathlib.Path, required=True)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--pause-ms", type=int, default=0)
    return parser.parse_args()


def main():
    options = parse_options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    width = options.width
    net = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.BatchNorm1d(width),
                              torch.nn.Dropout(0.1), torch.nn.Linear(width, 1))
    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    step, newest = 0, options.checkpoints / "newest.pt"
    if newest.exists():
        saved = torch.load(newest)
        net.load_state_dict(saved["model"])
        adam.load_state_dict(saved["optimizer"])
        step = saved["step"]
    ddp = DistributedDataParallel(net)
    ranks = dist.get_world_size()
    with open(options.notes / str(os.getpid()), "a") as notes:
        while True:
            first = (step * ranks + dist.get_rank()) * options.batch
            samples = torch.arange(first, first + options.batch).unsqueeze(1)
            data = torch.sin(torch.arange(8) * (0.1 + 0.37 * (samples % 4096)))
            net.zero_grad()
            (ddp(data) - data.sum(1, keepdim=True)).square().mean().backward()
            time.sleep(options.pause_ms / 1000)
            adam.step()
            step += 1
            print("done", step - 1, 0, ranks, 0, time.monotonic_ns(), file=notes, flush=True)
            if step % options.every == 0 and dist.get_rank() == 0:
                part = newest.with_suffix(".part")
                torch.save({"model": net.state_dict(), "optimizer": adam.state_dict(),
                            "step": step}, part)
                part.replace(newest)


if __name__ == "__main__":
    main()
