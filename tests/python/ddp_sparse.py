# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of ddp_sparse.cpp: the same names, the same steps."""

import torch
from ddp_models import Bag, Words
from ddp_rig import STEPS, sgd


def tokens(rig, step):
    return (rig.x(step).abs() * 7).long() % 20


def train_words(rig, net, optimizer, tokens_of=tokens, clip=None, set_to_none=True, **options):
    ddp = rig.wrap(net, **options)
    optimizer = optimizer(net)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none)
        rig.loss(ddp(tokens_of(rig, step)), step).backward()
        if clip:
            clip(net)
        optimizer.step()
    rig.record_all(ddp)


def sparse_sgd(rig):
    train_words(rig, rig.load("Words"), sgd)


def sparse_bag(rig):
    train_words(rig, rig.load("Bag"), sgd)


def sparse_adagrad(rig):
    train_words(rig, rig.load("Words"),
                lambda net: torch.optim.Adagrad(net.parameters(), 0.1))


def sparse_onto_zeros(rig):
    train_words(rig, rig.load("Words"), sgd, set_to_none=False)


def sparse_empty(rig):
    """The ranks alternate in having no word."""
    train_words(rig, rig.load("Words"), sgd,
                lambda rig, step: tokens(rig, step)[:, :0 if step % rig.ranks == rig.rank else 12])


def clip_to_half(net):
    """torch.nn.utils.clip_grad_norm_ refuses sparse gradients. Their elements are dense tensors."""
    gradients = []
    for parameter in net.parameters():
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
        sparse = parameter.grad.is_sparse
        gradients.append(parameter.grad._values() if sparse else parameter.grad)
    elements = [nothing_but(gradient) for gradient in gradients]
    torch.nn.utils.clip_grad_norm_(elements, 0.5)


def nothing_but(gradient):
    """A parameter with this gradient."""
    parameter = torch.empty_like(gradient)
    parameter.grad = gradient
    return parameter


def sparse_clipped(rig):
    train_words(rig, rig.load("Words"), sgd, clip=clip_to_half)


def sparse_accumulation(rig):
    net = rig.load("Words")
    ddp = rig.wrap(net)
    optimizer = sgd(net)
    for step in range(STEPS):
        optimizer.zero_grad()
        with ddp.no_sync():
            rig.loss(ddp(tokens(rig, (step + 1) % STEPS)), step).backward()
        rig.loss(ddp(tokens(rig, step)), step).backward()
        optimizer.step()
    rig.record_all(ddp)


SCENARIOS = (sparse_sgd, sparse_bag, sparse_adagrad, sparse_onto_zeros, sparse_empty,
             sparse_clipped, sparse_accumulation)
