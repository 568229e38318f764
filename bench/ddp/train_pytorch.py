# SPDX-License-Identifier: Apache-2.0
"""The other side of bench.py: what train.cpp does, under PyTorch's DistributedDataParallel and Gloo,
at the settings at which they are fastest."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 8 * 8, 512), nn.ReLU(), nn.Linear(512, 10))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    ddp = nn.parallel.DistributedDataParallel(
        cnn(), gradient_as_bucket_view=True, static_graph=True)
    adam = torch.optim.Adam(ddp.parameters(), 1e-4, fused=True)
    images = torch.randn(options.batch, 3, 32, 32)
    targets = torch.randint(10, (options.batch,))

    for step in range(options.warmup + options.steps):
        if step == options.warmup:
            dist.barrier()
            started = time.perf_counter()
        adam.zero_grad()
        nn.functional.cross_entropy(ddp(images), targets).backward()
        adam.step()
    dist.barrier()
    seconds = time.perf_counter() - started
    if dist.get_rank() == 0:
        samples = options.batch * options.steps * dist.get_world_size()
        print("samples_per_second", samples / seconds, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
