# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of ddp_zero.cpp: ZeroRedundancyOptimizer, and fully_shard()."""

import torch
import torch.distributed as dist
from ddp_rig import STEPS, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer


def partition_of(optimizer):
    """Returns, for each rank, the indices of its parameters, ended by -1."""
    indices = {id(p): i for i, p in enumerate(optimizer._all_params)}
    return [i for groups in optimizer._partition_parameters()
            for i in (*(indices[id(p)] for group in groups for p in group["params"]), -1)]


def train_and_record(rig, net, optimizer):
    train(rig, rig.wrap(net), optimizer)
    rig.record("partition", torch.tensor(partition_of(optimizer)))
    for name, parameter in net.named_parameters():
        rig.record(name, parameter)
    rig.record_losses()


def zero_adam(rig):
    net = rig.load("Mlp")
    train_and_record(rig, net, ZeroRedundancyOptimizer(
        net.parameters(), torch.optim.Adam, lr=0.01, weight_decay=0.1, fused=True))


def zero_sharded_gradients(rig):
    zero_adam(rig)


def zero_param_groups(rig):
    net = rig.load("Mlp")
    groups = [{"params": [*net.linear1.parameters()]},
              {"params": [*net.linear2.parameters(), *net.linear3.parameters()], "lr": 0.01}]
    train_and_record(rig, net, ZeroRedundancyOptimizer(groups, torch.optim.SGD, lr=0.1,
                                                       momentum=0.9))


def train_fully_sharded(rig, passes, policy=MixedPrecisionPolicy(), seen_as=torch.float32):
    net = rig.load("Mlp")
    for parameter in net.parameters():
        dist.broadcast(parameter.data, 0)
    mesh = init_device_mesh("cpu", (rig.ranks,))
    for layer in (net.linear1, net.linear2, net.linear3, net):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=0.1, fused=True)
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(passes):
            net.set_requires_gradient_sync(number + 1 == passes)
            rig.loss(net(rig.x((step + number) % STEPS)), step).backward()
        optimizer.step()
    for name, parameter in net.named_parameters():
        rig.record(name, parameter.full_tensor().to(seen_as).float())
    rig.record_losses()


def fully_sharded_adam(rig):
    train_fully_sharded(rig, passes=1)


def fully_sharded_accumulation(rig):
    train_fully_sharded(rig, passes=2)


def fully_sharded_bfloat16(rig):
    train_fully_sharded(rig, 1, MixedPrecisionPolicy(param_dtype=torch.bfloat16,
                                                     reduce_dtype=torch.float32), torch.bfloat16)


SCENARIOS = (zero_adam, zero_sharded_gradients, zero_param_groups, fully_sharded_adam,
             fully_sharded_accumulation, fully_sharded_bfloat16)
