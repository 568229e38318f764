# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of ddp_script.cpp: the same names, the same steps. TorchScript modules are loaded
from the files that ddp_test.py has written."""

from typing import Dict, Tuple

import torch
from ddp_buffers import train_norm
from ddp_models import Branches, Norm
from ddp_rig import STEPS, changing_branch, sgd, train, train_with_sgd
from torch import Tensor, nn


class ScriptBranches(Branches):
    """Returns tensors in a tuple and a dictionary."""

    def forward(self, x: Tensor, branch: int) -> Tuple[Tensor, Dict[str, Tensor]]:
        x = torch.relu(self.trunk(x))
        y = self.head(x)
        if branch == 0:
            y = y + self.a(x)
        if branch == 1:
            y = y + self.b(x)
        return y, {"penalty": x.mean()}


class Assigning(nn.Module):
    """Assigns other tensors to its buffers in forward()."""

    def __init__(self):
        super().__init__()
        self.linear1 = nn.Linear(12, 16)
        self.linear2 = nn.Linear(16, 4)
        self.register_buffer("mean", torch.zeros(12))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.mean = self.mean * 0.9 + x.mean(0) * 0.1
            self.calls = self.calls + 1
        return self.linear2(torch.relu(self.linear1(x - self.mean)))


SCRIPTS = (Norm, ScriptBranches, Assigning)


def write_scripts(folder):
    for model in SCRIPTS:
        torch.jit.script(model()).save(folder / f"{model.__name__}.pt")


def load_script(rig, name):
    """Returns a script whose parameters are rank 0's on rank 0 only."""
    script = torch.jit.load(rig.folder / f"{name}.pt")
    with torch.no_grad():
        for parameter in script.parameters():
            parameter.mul_(rig.rank + 1)
    return script


def script(rig):
    net = load_script(rig, "Norm")
    net.norm.running_mean.fill_(rig.rank)
    train_norm(rig, net)


def script_assigning(rig):
    train_with_sgd(rig, load_script(rig, "Assigning"))


def script_branches(rig):
    net = load_script(rig, "ScriptBranches")
    ddp = rig.wrap(net, find_unused_parameters=True)
    optimizer = sgd(net)
    for step in range(STEPS):
        optimizer.zero_grad()
        output, others = ddp(rig.x(step), changing_branch(rig, step))
        (rig.loss(output, step) + others["penalty"]).backward()
        optimizer.step()
    rig.record_all(ddp)


def function(rig):
    net = rig.load("Norm")
    ddp = rig.wrap(net)
    train(rig, ddp, sgd(net))
    rig.record_all(ddp)


SCENARIOS = (script, script_assigning, script_branches, function)
