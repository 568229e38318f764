# SPDX-License-Identifier: Apache-2.0
"""The models of bench/ddp with their loss, for lockstep_export."""

import pathlib
import sys

from torch import nn
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "ddp"))
import models  # noqa: E402, from a folder beside this one


class WithLoss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, inputs, targets):
        logits = self.net(inputs)
        return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def cnn(batch):
    net, inputs, targets = models.WORKLOADS["cnn"](batch)
    return WithLoss(net), (inputs, targets)


def resnet18(batch):
    net, inputs, targets = models.WORKLOADS["resnet18"](batch)
    return WithLoss(net), (inputs, targets)


def gpt(batch):
    net, inputs, targets = models.WORKLOADS["gpt"](batch)
    return WithLoss(net), (inputs, targets)
