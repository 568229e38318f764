#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records which channels Torch-Pruning removes together, and what half of them leaves of a model.

Needs torch, torchvision and torch-pruning 1.6.1. Each line of a file is a group:
  64 conv1 bn1 < layer1.0.conv1
its channels, the layers that make them, and the layers that take them. The last line has the number
of parameters, before and after half of the channels of each group are removed.

record.py FOLDER
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

from torchvision_or_skip import torch
import torch_pruning
import torchvision


class Cnn(torch.nn.Module):
    """That of examples/models/cnn.h."""

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 32, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(32, 64, 3, padding=1)
        self.linear1 = torch.nn.Linear(64 * 8 * 8, 512)
        self.linear2 = torch.nn.Linear(512, 10)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.linear2(torch.relu(self.linear1(x.flatten(1))))


def parameters_of(model):
    return sum(parameter.numel() for parameter in model.parameters())


def lines_of(model, example, last):
    names = {module: name for name, module in model.named_modules()}
    before = parameters_of(model)
    graph = torch_pruning.DependencyGraph().build_dependency(model, example_inputs=example)
    roots = [torch.nn.Conv2d, torch.nn.Linear]
    groups = list(graph.get_all_groups(ignored_layers=[last], root_module_types=roots))
    for group in groups:
        made, taken = [], []
        for dependency, _ in group:
            module = dependency.target.module
            if module not in names:
                continue  # An operation without parameters.
            side = made if graph.is_out_channel_pruning_fn(dependency.handler) else taken
            side.append(names[module])
        yield " ".join([str(len(group[0].idxs)), *sorted(set(made)), "<", *sorted(set(taken))])
    pruner = torch_pruning.pruner.BasePruner(
        model, example, importance=torch_pruning.importance.MagnitudeImportance(p=1),
        pruning_ratio=0.5, ignored_layers=[last])
    pruner.step()
    yield f"parameters {before} {parameters_of(model)}"


def main():
    folder = pathlib.Path(sys.argv[1])
    cnn, resnet = Cnn(), torchvision.models.resnet18()
    efficientnet = torchvision.models.efficientnet_b0()
    for name, model, last, size in (("cnn", cnn, cnn.linear2, 32),
                                    ("resnet18", resnet, resnet.fc, 224),
                                    ("efficientnet_b0", efficientnet,
                                     efficientnet.classifier[1], 224)):
        lines = list(lines_of(model.eval(), torch.randn(1, 3, size, size), last))
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
