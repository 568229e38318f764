# SPDX-License-Identifier: Apache-2.0
"""Tensor parallel layers: the ranks of a row of the mesh share every layer of a transformer; the
rows are sharded replicas of each other.

    lockstep run -n 4 python tensor_parallel.py --tensor-parallel 2
    torchrun --nproc-per-node 2 tensor_parallel.py
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                               parallelize_module)

import transformer

# The first layers of a pair are cut by columns, the last by rows: one sum per pair.
PLAN = {"query": ColwiseParallel(), "key": ColwiseParallel(), "value": ColwiseParallel(),
        "out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}


def divided(mesh):
    torch.manual_seed(0)
    model = transformer.Transformer()
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], PLAN)
    if mesh["replica"].size() > 1:
        fully_shard(model, mesh=mesh["replica"])
    return model


def train(model, mesh, options):
    """Returns the loss of each step on this row of the mesh."""
    # The ranks of a row have the same sequences.
    random = torch.Generator().manual_seed(mesh["replica"].get_local_rank())
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, foreach=False)
    losses = []
    for step in range(options.steps):
        inputs, targets = transformer.sequences(options.batch_size, random)
        loss = model(inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if dist.get_rank() == 0 and step % 10 == 9:
            print(f"step {step + 1}: loss {losses[-1]:.4f}", flush=True)
    return losses


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="lockstep")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=16, help="of each row")
    parser.add_argument("--tensor-parallel", type=int, default=2, help="ranks that share a layer")
    options = parser.parse_args(arguments)
    dist.init_process_group(options.backend)
    rows = dist.get_world_size() // options.tensor_parallel
    mesh = init_device_mesh("cpu", (rows, options.tensor_parallel),
                            mesh_dim_names=("replica", "tensor"))
    model = divided(mesh)
    losses = train(model, mesh, options)
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    dist.destroy_process_group()
    return losses, weights


if __name__ == "__main__":
    main()
