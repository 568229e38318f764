#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lockstep::DistributedSampler deals the same samples as torch.utils.data.DistributedSampler."""

import itertools
import subprocess
import sys

from torch_or_skip import torch

SIZES = [*range(1, 41), 1000]
REPLICAS = range(1, 8)
EPOCHS = [0, 1, 12]
SEEDS = [0, 42, 2**63]


def cases():
    for size, replicas in itertools.product(SIZES, REPLICAS):
        for rank in range(replicas):
            for drop_last in [False, True]:
                yield size, replicas, rank, 0, 0, False, drop_last
                for epoch, seed in itertools.product(EPOCHS, SEEDS):
                    yield size, replicas, rank, epoch, seed, True, drop_last


def expected(size, replicas, rank, epoch, seed, shuffle, drop_last):
    sampler = torch.utils.data.DistributedSampler(
        range(size), replicas, rank, shuffle=shuffle, seed=seed, drop_last=drop_last
    )
    sampler.set_epoch(epoch)
    return list(sampler)


def main():
    grid = list(cases())
    lines = "".join(" ".join(str(int(value)) for value in case) + "\n" for case in grid)
    answer = subprocess.run([sys.argv[1]], input=lines, capture_output=True, text=True, check=True)
    dealt = [[int(index) for index in line.split()] for line in answer.stdout.splitlines()]
    assert len(dealt) == len(grid), f"{len(dealt)} lists for {len(grid)} cases"
    for case, ours in zip(grid, dealt):
        theirs = expected(*case)
        assert ours == theirs, f"{case}: Python deals {theirs}, we deal {ours}"
    print(f"{len(grid)} lists are equal, with torch {torch.__version__}")


main()
