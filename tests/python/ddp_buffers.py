# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of ddp_buffers.cpp: the same names, the same steps."""

import torch
from ddp_rig import STEPS, changing_branch, sgd, train


def norm(rig):
    net = rig.load("Norm")
    net.norm.running_mean.fill_(rig.rank)
    return net


def train_norm(rig, net, **options):
    ddp = rig.wrap(net, **options)
    optimizer = sgd(net)
    for half in (0, 1):
        train(rig, ddp, optimizer, half * STEPS // 2, (half + 1) * STEPS // 2)
        ddp.eval()
        with torch.no_grad():
            for i in range(2 + rig.rank):
                rig.record(f"evaluated{half}{i}", ddp(rig.x(i)))
        ddp.train()
    rig.record_all(ddp)


def buffers(rig):
    train_norm(rig, norm(rig))


def buffers_apart(rig):
    train_norm(rig, norm(rig), forward_sync_buffers=False)


def buffers_accumulation(rig):
    net = norm(rig)
    ddp = rig.wrap(net)
    optimizer = sgd(net)
    for step in range(STEPS):
        optimizer.zero_grad()
        with ddp.no_sync():
            for i in (0, 1):
                rig.loss(ddp(rig.x((step + i) % STEPS)), step).backward()
        rig.loss(ddp(rig.x(step)), step).backward()
        optimizer.step()
    rig.record_all(ddp)


def uneven_steps(rig, longest):
    if longest == "all":
        return STEPS
    if longest == "all_but_first":
        return 0 if rig.rank == 0 else STEPS
    return STEPS - 4 * (rig.rank if longest == "first" else rig.ranks - 1 - rig.rank)


def train_uneven(rig, net, longest, divide_by_initial_world_size=True, **options):
    ddp = rig.wrap(net, **options)
    with ddp.join(divide_by_initial_world_size):
        train(rig, ddp, sgd(net), 0, uneven_steps(rig, longest))
    ddp.eval()
    train(rig, ddp, torch.optim.SGD(net.parameters(), 0.1), STEPS - 3, STEPS)
    rig.record_all(ddp)


def join_last(rig):
    train_uneven(rig, rig.load("Mlp"), "last")


def join_first(rig):
    train_uneven(rig, rig.load("Mlp"), "first")


def join_even(rig):
    train_uneven(rig, rig.load("Mlp"), "all")


def join_empty(rig):
    train_uneven(rig, rig.load("Mlp"), "all_but_first")


def join_active(rig):
    train_uneven(rig, rig.load("Mlp"), "last", divide_by_initial_world_size=False)


def join_buffers(rig):
    train_uneven(rig, norm(rig), "first")


def join_buffers_active(rig):
    train_uneven(rig, norm(rig), "last", divide_by_initial_world_size=False)


def join_buffers_apart(rig):
    train_uneven(rig, norm(rig), "last", forward_sync_buffers=False)


def join_accumulation(rig):
    net = norm(rig)
    ddp = rig.wrap(net)
    optimizer = sgd(net)
    with ddp.join():
        for step in range(uneven_steps(rig, "last")):
            optimizer.zero_grad()
            with ddp.no_sync():
                rig.loss(ddp(rig.x((step + 1) % STEPS)), step).backward()
            rig.loss(ddp(rig.x(step)), step).backward()
            optimizer.step()
    ddp.eval()
    optimizer.zero_grad()
    rig.loss(ddp(rig.x(0)), 0).backward()
    rig.record_all(ddp)


def join_unused(rig):
    net = rig.load("Branches")
    ddp = rig.wrap(net, find_unused_parameters=True)
    optimizer = sgd(net, 0.01)
    # A joined rank uses no parameter. PyTorch's passes its own map to the all-reduce, and never
    # clears the map. It thus reports all parameters that any rank has used since it joined.
    ddp._match_unused_params_allreduce = lambda: ddp.process_group.allreduce(
        torch.zeros_like(ddp.reducer._get_local_used_map()))
    with ddp.join():
        for step in range(uneven_steps(rig, "last")):
            optimizer.zero_grad()
            rig.loss(ddp(rig.x(step), changing_branch(rig, step)), step).backward()
            optimizer.step()
    optimizer.zero_grad()
    rig.record_all(ddp)


SCENARIOS = (
    buffers, buffers_apart, buffers_accumulation, join_last, join_first, join_even, join_empty,
    join_active, join_buffers, join_buffers_active, join_buffers_apart, join_accumulation,
    join_unused,
)
