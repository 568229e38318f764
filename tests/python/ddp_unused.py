# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of ddp_unused.cpp: the same names, the same steps."""

from ddp_rig import STEPS, changing_branch, fused_adam, sgd


def train_branches(rig, zero_grad, make_optimizer=lambda net: sgd(net, 0.01)):
    net = rig.load("Branches")
    ddp = rig.wrap(net, find_unused_parameters=True)
    optimizer = make_optimizer(net)
    for step in range(STEPS):
        zero_grad(optimizer, step)
        rig.loss(ddp(rig.x(step), changing_branch(rig, step)), step).backward()
        optimizer.step()
    rig.record_all(ddp)


def unused(rig):
    train_branches(rig, lambda optimizer, step: optimizer.zero_grad())


def unused_zeros(rig):
    train_branches(rig, lambda optimizer, step: optimizer.zero_grad(False))


def unused_stale(rig):
    train_branches(rig, lambda optimizer, step: step % 5 == 0 and optimizer.zero_grad())


def unused_adam(rig):
    train_branches(rig, lambda optimizer, step: optimizer.zero_grad(), fused_adam)


def unused_accumulation(rig):
    net = rig.load("Branches")
    ddp = rig.wrap(net, find_unused_parameters=True)
    optimizer = sgd(net, 0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        with ddp.no_sync():
            rig.loss(ddp(rig.x(step), changing_branch(rig, step)), step).backward()
        rig.loss(ddp(rig.x(step), changing_branch(rig, step // 2)), step).backward()
        optimizer.step()
    rig.record_all(ddp)


def frozen_for_a_while(rig):
    net = rig.load("Mlp")
    ddp = rig.wrap(net, find_unused_parameters=True)
    optimizer = sgd(net)
    for step in range(STEPS):
        net.linear1.requires_grad_(step < 5 or step >= 12)
        optimizer.zero_grad()
        rig.loss(ddp(rig.x(step)), step).backward()
        optimizer.step()
    rig.record_all(ddp)


def train_static(rig, branch, set_to_none):
    net = rig.load("Branches")
    ddp = rig.wrap(net, static_graph=True)
    optimizer = sgd(net, 0.01)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none)
        rig.loss(ddp(rig.x(step), branch), step).backward()
        optimizer.step()
    rig.record_all(ddp)


def static_graph(rig):
    train_static(rig, 0, True)


def static_graph_zeros(rig):
    train_static(rig, 1, False)


def static_graph_of_each(rig):
    train_static(rig, rig.rank % 3, True)


SCENARIOS = (
    unused, unused_zeros, unused_stale, unused_adam, unused_accumulation, frozen_for_a_while,
    static_graph, static_graph_zeros, static_graph_of_each,
)
