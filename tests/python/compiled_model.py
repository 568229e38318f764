# SPDX-License-Identifier: Apache-2.0
"""The model of compiled_test.py, which lockstep_export finds here. It has BatchNorm, dropout, two
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
    """Its backward() depends on the number of calls, which a graph cannot represent."""

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


class OfLargeBatches(nn.Module):
    """A branch on the batch size. A graph has only one side of it."""

    def __init__(self, is_large):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.is_large = is_large

    def forward(self, x):
        y = self.linear(x)
        if self.is_large(x.shape[0]):
            y = y * 2
        return y.square().mean()


def make_from_six_on(batch):
    return OfLargeBatches(lambda size: size >= 6), (torch.ones(batch, 4),)


def make_up_to_nine(batch):
    return OfLargeBatches(lambda size: size > 9), (torch.ones(batch, 4),)


def make_even_batch(batch):
    return OfLargeBatches(lambda size: size % 2 == 0), (torch.ones(batch, 4),)


class FineTuned(nn.Module):
    """A backbone in evaluation mode, whose norm keeps its statistics, and a mask that is not in
    the state."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.head = nn.Linear(4, 2)
        self.register_buffer("mask", torch.tensor([0.0, 1.0]), persistent=False)
        self.backbone[1].running_mean.fill_(3)

    def forward(self, x):
        logits = self.head(self.backbone(x)) * self.mask
        return logits.square().mean(), logits


def make_fine_tuned(batch):
    model = FineTuned()
    model.backbone.eval()
    return model, (torch.randn(batch, 4),)


def make_in_evaluation(batch):
    return FineTuned().eval(), (torch.randn(batch, 4),)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.calls += 1
        return self.linear(x).square().mean()


def make_counting(batch):
    return Counting(), (torch.ones(batch, 4),)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 24)

    def forward(self, tokens):
        q, k, v = self.project(tokens).view(-1, 6, 2, 12).transpose(1, 2).split(4, -1)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean()


def make_attention(batch):
    torch.manual_seed(0)
    return Attention(), (torch.randn(batch, 6, 8),)


def make_view(batch):
    model = nn.Linear(4, 2)
    model.bias = nn.Parameter(torch.ones(1).expand(2))
    return model, (torch.ones(batch, 4),)


class OfValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x):
        loss = self.linear(x).mean()
        return loss if loss > 0 else -loss


def make_of_values(batch):
    return OfValues(), (torch.ones(batch, 4),)


class WithText(Changing):
    def forward(self, x):
        return self.linear(x).square().mean(), "text"


def make_with_text(batch):
    return WithText(), (torch.ones(batch, 4),)


def make_float8(batch):
    model = Changing()
    model.register_buffer("scales", torch.ones(1).to(torch.float8_e5m2))
    return model, (torch.ones(batch, 4),)


def make_without_loss(batch):
    return nn.Linear(4, 2), (torch.ones(batch, 4),)


def make_odd_batch(batch):
    return Changing(), (torch.ones(2 * batch, 4),)
