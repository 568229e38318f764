# SPDX-License-Identifier: Apache-2.0
"""A pipeline: each rank has some blocks of a transformer, and passes activations to the next one.

    lockstep run -n 2 python pipeline.py
    torchrun --nproc-per-node 4 pipeline.py --schedule GPipe
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import transformer

SCHEDULES = {"1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}


class Stage(nn.Module):
    """The blocks of a rank; on the first and the last rank also the embedding and the output."""

    def __init__(self, whole, rank, ranks):
        super().__init__()
        begin, end = (len(whole.blocks) * edge // ranks for edge in (rank, rank + 1))
        self.first = nn.ModuleList([whole.tokens]) if rank == 0 else None
        self.positions = whole.positions if rank == 0 else None
        self.blocks = whole.blocks[begin:end]
        self.head = whole.head if rank == ranks - 1 else nn.Identity()

    def forward(self, x):
        if self.first is not None:
            x = self.first[0](x) + self.positions
        return self.head(self.blocks(x))


def train(options):
    """Returns this rank's part of the model, and the losses, which the last rank has."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # Every rank creates the same weights, and keeps its blocks.
    model = Stage(transformer.Transformer(), rank, ranks)
    stage = PipelineStage(model, rank, ranks, torch.device("cpu"))
    schedule = SCHEDULES[options.schedule](stage, options.microbatches, transformer.loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    random = torch.Generator().manual_seed(0)
    losses = []
    for step in range(options.steps):
        inputs, targets = transformer.sequences(options.batch_size, random)
        parts = []
        if rank == 0:
            schedule.step(inputs)
        elif rank == ranks - 1:
            schedule.step(target=targets, losses=parts)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        if rank == ranks - 1:
            losses.append(torch.stack(parts).mean().item())
            if step % 10 == 9:
                print(f"step {step + 1}: loss {losses[-1]:.4f}", flush=True)
    return model, losses


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="lockstep")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1F1B")
    options = parser.parse_args(arguments)
    dist.init_process_group(options.backend)
    model, losses = train(options)
    dist.destroy_process_group()
    return losses, model.state_dict()


if __name__ == "__main__":
    main()
