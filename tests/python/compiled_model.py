# SPDX-License-Identifier: Apache-2.0
"""The model of compiled_test.py, which lockstep_export finds here: BatchNorm, dropout, two
convolutions with one weight, a frozen parameter, and one without a part in the loss."""

import torch
from torch import nn
from torch.nn import functional

CLASSES = 5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.mix = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1))
        self.mix[2].weight = self.mix[0].weight
        self.mix[0].bias.requires_grad_(False)
        self.dropout = nn.Dropout(0.25)
        self.head = nn.Linear(8 * 3 * 3, CLASSES)
        self.spare = nn.Parameter(torch.ones(2))

    def forward(self, images, classes):
        x = functional.relu(self.norm(self.conv(images)))
        x = functional.max_pool2d(self.mix(x), 2).flatten(1)
        logits = self.head(self.dropout(x))
        return functional.cross_entropy(logits, classes), logits


def make(batch):
    torch.manual_seed(0)
    return Net(), (torch.randn(batch, 3, 8, 8), torch.randint(CLASSES, (batch,)))


class WrongGradient(torch.autograd.Function):
    """Its backward() depends on how often it was called, which no graph can have."""

    calls = 0

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        WrongGradient.calls += 1
        return gradient * WrongGradient.calls


class Changing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return WrongGradient.apply(self.linear(x)).square().mean()


def make_changing(batch):
    return Changing(), (torch.ones(batch, 4),)


def make_without_loss(batch):
    return nn.Linear(4, 2), (torch.ones(batch, 4),)


def make_odd_batch(batch):
    return Changing(), (torch.ones(2 * batch, 4),)
