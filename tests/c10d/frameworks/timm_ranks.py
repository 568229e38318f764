# SPDX-License-Identifier: Apache-2.0
"""timm's own start of a group by the backend's name, its means over ranks, and its EMA."""

import argparse

import framework
import timm
import torch
import torch.distributed as dist
from timm import optim, utils
from torch.nn.parallel import DistributedDataParallel


def train(backend):
    options = argparse.Namespace(device="cpu", dist_backend=backend, dist_url=None)
    if backend:
        utils.init_distributed_device(options)
        assert options.distributed and options.world_size == 2
    torch.manual_seed(5)
    model = timm.create_model("test_resnet", num_classes=4)
    wrapped = DistributedDataParallel(model)
    average = utils.ModelEmaV3(model, decay=0.9)
    optimizer = optim.create_optimizer_v2(model, opt="sgd", lr=0.05, momentum=0.9)
    losses = []
    random = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(3):
        images = torch.randn(4, 3, 32, 32, generator=random)
        loss = wrapped(images).logsumexp(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        losses.append(utils.reduce_tensor(loss.detach(), dist.get_world_size()))
    utils.distribute_bn(model, dist.get_world_size(), reduce=True)
    return framework.result(losses, model) | {"average": next(average.module.parameters()).detach()}


framework.run(train, "name", "group")
