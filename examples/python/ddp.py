# SPDX-License-Identifier: Apache-2.0
"""Replicas: trains a CNN with DistributedDataParallel.

    lockstep run -n 2 python ddp.py
    torchrun --nproc-per-node 2 ddp.py

The data are noisy pictures of ten shapes, made by every rank from the same seed.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def pictures(count):
    shapes = torch.randn(10, 1, 16, 16)
    classes = torch.randint(10, (count,))
    return TensorDataset(shapes[classes] + torch.randn(count, 1, 16, 16), classes)


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 10))


def train(options):
    """Returns the model and its loss in each epoch, the mean of all ranks."""
    torch.manual_seed(0)
    data = pictures(options.samples)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, options.batch_size, sampler=sampler, num_workers=options.workers)
    model = DistributedDataParallel(cnn())
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for images, classes in loader:
            loss = nn.functional.cross_entropy(model(images), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() / len(loader)
        dist.all_reduce(total, dist.ReduceOp.AVG)
        losses.append(total.item())
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.4f}", flush=True)
    return model.module, losses


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="lockstep")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--workers", type=int, default=0, help="processes that load data")
    options = parser.parse_args(arguments)
    dist.init_process_group(options.backend)
    model, losses = train(options)
    dist.destroy_process_group()
    return losses, model.state_dict()


if __name__ == "__main__":
    main()
