# SPDX-License-Identifier: Apache-2.0
"""Differentially private training: per-sample gradients, clipped, summed over ranks, with noise."""

import warnings

import framework
import torch
import torch.distributed as dist
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")


def train(backend):
    if backend:
        dist.init_process_group(backend)
    model = DifferentiallyPrivateDistributedDataParallel(framework.own_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(*framework.samples(dist.get_rank()))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=DataLoader(data, batch_size=8),
        noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=False,
        noise_generator=torch.Generator().manual_seed(9))
    losses = []
    for inputs, classes in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), classes)
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return framework.result(losses, model)


framework.run(train, "group")
