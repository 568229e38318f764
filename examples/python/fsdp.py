# SPDX-License-Identifier: Apache-2.0
"""Sharded replicas: trains a transformer with FSDP2. Each rank keeps a part of each weight.

    lockstep run -n 2 python fsdp.py --checkpoint steps
    torchrun --nproc-per-node 2 fsdp.py
"""

import argparse

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import transformer


def sharded(options):
    torch.manual_seed(0)  # Every rank creates the same weights, and keeps its part.
    model = transformer.Transformer()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if options.bf16 else \
        MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def train(model, optimizer, options):
    """Returns the loss of each step, the mean of all ranks."""
    random = torch.Generator().manual_seed(dist.get_rank())  # Each rank has its own sequences.
    losses = []
    for step in range(options.steps):
        inputs, targets = transformer.sequences(options.batch_size, random)
        loss = model(inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
        if dist.get_rank() == 0 and step % 10 == 9:
            print(f"step {step + 1}: loss {losses[-1]:.4f}", flush=True)
    return losses


def save(model, optimizer, folder):
    """Writes each rank's parts; any number of ranks can load them."""
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="lockstep")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=16, help="of each rank")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16")
    parser.add_argument("--checkpoint", help="folder for the state at the end")
    options = parser.parse_args(arguments)
    dist.init_process_group(options.backend)
    model = sharded(options)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = train(model, optimizer, options)
    if options.checkpoint:
        save(model, optimizer, options.checkpoint)
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    dist.destroy_process_group()
    return losses, weights


if __name__ == "__main__":
    main()
