# SPDX-License-Identifier: Apache-2.0
"""Python's side of ddp_models.h and examples/models/cnn.h."""

from torch_or_skip import torch

nn = torch.nn


class Mlp(nn.Module):
    def __init__(self, inputs=12, hidden=32, outputs=4):
        super().__init__()
        self.linear1 = nn.Linear(inputs, hidden)
        self.linear2 = nn.Linear(hidden, hidden)
        self.linear3 = nn.Linear(hidden, outputs)

    def forward(self, x):
        x = torch.relu(self.linear1(x.to(self.linear1.weight.dtype)))
        return self.linear3(torch.relu(self.linear2(x)))


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(12, 16)
        self.head, self.a, self.b, self.never = (nn.Linear(16, 4) for _ in range(4))

    def forward(self, x, branch):
        x = torch.relu(self.trunk(x))
        if branch == 0:
            return self.head(x) + self.a(x)
        if branch == 1:
            return self.head(x) + self.b(x)
        return self.head(x)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.second = self.first
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1 = nn.Linear(12, 16)
        self.linear2 = nn.Linear(16, 16).double()
        self.linear3 = nn.Linear(16, 16)
        self.linear4 = nn.Linear(16, 4).double()

    def forward(self, x):
        x = torch.relu(self.linear2(torch.relu(self.linear1(x)).double()))
        return self.linear4(torch.relu(self.linear3(x.float())).double())


class Complex(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.linear1 = nn.Linear(12, 16)
        self.weight = nn.Parameter(torch.empty(8, 8, dtype=torch.complex64))
        self.register_buffer("phase", torch.empty(8, dtype=torch.complex64))
        self.linear2 = nn.Linear(16, 4)
        with torch.no_grad():
            for tensor in (self.linear1.weight, self.linear1.bias, self.weight, self.phase,
                           self.linear2.weight, self.linear2.bias):
                reals = torch.view_as_real(tensor) if tensor.is_complex() else tensor
                reals.copy_(torch.arange(reals.numel()).sin().mul(factor).view(reals.shape))

    def forward(self, x):
        z = torch.view_as_complex(torch.tanh(self.linear1(x)).view(-1, 8, 2))
        return self.linear2(torch.view_as_real(z.matmul(self.weight) * self.phase).flatten(1))


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1 = nn.Linear(12, 16)
        self.norm = nn.BatchNorm1d(16)
        self.linear2 = nn.Linear(16, 4)

    def forward(self, x):
        return self.linear2(torch.relu(self.norm(self.linear1(x))))


class Words(nn.Module):
    """Has an embedding with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8, sparse=True)
        self.linear1 = nn.Linear(8, 16)
        self.linear2 = nn.Linear(16, 4)

    def forward(self, tokens):
        return self.linear2(torch.relu(self.linear1(self.embedding(tokens).sum(1))))


class Bag(nn.Module):
    """Sums the rows of a bag with sparse gradients, between layers."""

    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(20, 8, mode="sum", sparse=True)
        self.embedding = nn.Embedding(20, 8, sparse=True)
        self.linear = nn.Linear(8, 4)

    def forward(self, tokens):
        return self.linear(torch.relu(self.bag(tokens) + self.embedding(tokens).sum(1)))


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


MODELS = {model.__name__: model for model in (Mlp, Branches, Tied, Mixed, Norm, Words, Bag, Cnn)}
