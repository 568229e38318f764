# SPDX-License-Identifier: Apache-2.0
"""Common tools of the scenarios, with the same names as in ddp_rig.h."""

import torch
import torch.distributed as dist
from ddp_models import MODELS
from plain_safetensors import read
from torch import nn

STEPS = 20


class Rig:
    def __init__(self, folder, inputs):
        self.folder, self.inputs = folder, inputs
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.losses, self.result = [], {}

    def x(self, step):
        return self.inputs["x"][step, self.rank]

    def y(self, step):
        return self.inputs["y"][step, self.rank]

    def load(self, name):
        net = MODELS[name]()
        if self.rank == 0:
            net.load_state_dict(read(self.folder / name, {}))
        return net

    def wrap(self, net, bucket_cap_mb=0.001, **options):
        return nn.parallel.DistributedDataParallel(net, bucket_cap_mb=bucket_cap_mb, **options)

    def loss(self, output, target):
        target = self.y(target) if isinstance(target, int) else target
        loss = nn.functional.cross_entropy(output, target)
        self.losses.append(loss.detach().double())
        return loss

    def record(self, name, tensor):
        reals = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        self.result[name] = reals.detach().to_dense().clone()

    def record_buckets(self, ddp):
        flat = [i for bucket in buckets_of(ddp) for i in (*bucket, -1)]
        self.record("buckets", torch.tensor(flat))

    def record_tensors(self, net, prefix=""):
        for name, tensor in net.state_dict(keep_vars=True).items():
            self.record(prefix + name, tensor)
            if tensor.grad is not None:
                self.record(f"grad.{prefix}{name}", tensor.grad)

    def record_all(self, ddp):
        self.record_buckets(ddp)
        self.record_tensors(ddp.module)
        self.record_losses()

    def record_losses(self):
        self.record("losses", torch.stack(self.losses))


def buckets_of(ddp):
    """Returns the buckets after the rebuild; DistributedDataParallel lists them as text: "5 4 3 2,
    1 0"."""
    if ddp.find_unused_parameters:  # It keeps the initial buckets, and does not list them.
        limits, _ = ddp._bucket_config.compute_bucket_size_limits(False, True)
        parameters = list(ddp.module.parameters())
        return reversed(dist._compute_bucket_assignment_by_size(parameters, limits)[0])
    text = ddp._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"]
    return [map(int, bucket.split()) for bucket in text.split(",")]


def sgd(net, weight_decay=0.0):
    return torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=weight_decay)


def fused_adam(net):
    return torch.optim.Adam(net.parameters(), 0.01, weight_decay=0.1, fused=True)


def train(rig, ddp, optimizer, begin=0, end=STEPS):
    for step in range(begin, end):
        optimizer.zero_grad()
        rig.loss(ddp(rig.x(step)), step).backward()
        optimizer.step()


def train_with_sgd(rig, net, **options):
    ddp = rig.wrap(net, **options)
    train(rig, ddp, sgd(net))
    rig.record_all(ddp)


def changing_branch(rig, step):
    return (step + rig.rank) % 4
