# SPDX-License-Identifier: Apache-2.0
"""The other side of ddp_test.py: what ddp_train.cpp does, under PyTorch's DistributedDataParallel.
ddp_pytorch.py WEIGHTS DATA STEPS BATCH RESULT, under torchrun."""

import pathlib
import sys

import torch
import torch.distributed as dist
from plain_safetensors import read, write
from torch import nn


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.linear1 = nn.Linear(64 * 2 * 2, 512)
        self.linear2 = nn.Linear(512, 10)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.linear2(torch.relu(self.linear1(x.flatten(1))))


def main():
    weights, data, result = (pathlib.Path(sys.argv[i]) for i in (1, 2, 5))
    steps, batch = int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    net = Cnn()
    if dist.get_rank() == 0:
        net.load_state_dict(read(weights, {}))
    samples = read(data, {})
    ddp = nn.parallel.DistributedDataParallel(net)
    sgd = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    order = list(torch.utils.data.DistributedSampler(samples["images"], seed=5))
    losses = []
    for step in range(steps):
        drawn = order[step * batch : (step + 1) * batch]
        sgd.zero_grad()
        loss = nn.functional.cross_entropy(ddp(samples["images"][drawn]), samples["targets"][drawn])
        loss.backward()
        sgd.step()
        everybodys = [torch.empty(()) for _ in range(dist.get_world_size())]
        dist.all_gather(everybodys, loss.detach())
        losses.append(torch.stack(everybodys))
    if dist.get_rank() == 0:
        write(result, dict(net.state_dict()) | {"losses": torch.stack(losses)}, {})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
