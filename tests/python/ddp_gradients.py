# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of ddp_gradients.cpp: the same names, the same steps."""

import torch
import torch.distributed as dist
from ddp_models import Complex, Mlp
from ddp_rig import STEPS, fused_adam, sgd, train, train_with_sgd
from torch.distributed.algorithms.ddp_comm_hooks import (default_hooks, post_localSGD_hook,
                                                             powerSGD_hook)
from torch.distributed.algorithms.model_averaging import averagers


def small_buckets(rig):
    train_with_sgd(rig, rig.load("Mlp"))


def default_buckets(rig):
    train_with_sgd(rig, rig.load("Mlp"), bucket_cap_mb=None)


def bucket_list(rig):
    caps = [0.0005, 0.004, 0.001]
    train_with_sgd(rig, rig.load("Mlp"), bucket_cap_mb=None, bucket_cap_mb_list=caps)


def in_double(rig):
    train_with_sgd(rig, rig.load("Mlp").double())


def sampled_cnn(rig):
    batch = 4
    images, targets = rig.inputs["images"], rig.inputs["targets"]
    net = rig.load("Cnn")
    ddp = rig.wrap(net, bucket_cap_mb=None)
    optimizer = sgd(net)
    order = list(torch.utils.data.DistributedSampler(images, seed=5))
    for step in range(STEPS):
        drawn = order[step * batch : (step + 1) * batch]
        optimizer.zero_grad()
        rig.loss(ddp(images[drawn]), targets[drawn]).backward()
        optimizer.step()
    rig.record_all(ddp)


def large_mlp(rig):
    ddp = rig.wrap(Mlp(784, 512, 10), bucket_cap_mb=None)
    for _ in range(3):
        ddp(torch.ones(2, 784)).sum().backward()
    rig.record_buckets(ddp)


def accumulate(rig, set_to_none):
    net = rig.load("Mlp")
    ddp = rig.wrap(net)
    optimizer = sgd(net)
    for step in range(STEPS):
        xs, ys = rig.x(step).chunk(3), rig.y(step).chunk(3)
        optimizer.zero_grad(set_to_none)
        with ddp.no_sync():
            for i in (0, 1):
                rig.loss(ddp(xs[i]), ys[i]).backward()
        rig.loss(ddp(xs[2]), ys[2]).backward()
        optimizer.step()
    rig.record_all(ddp)


def accumulation(rig):
    accumulate(rig, True)


def accumulation_onto_zeros(rig):
    accumulate(rig, False)


def adam(rig):
    net = rig.load("Mlp")
    ddp = rig.wrap(net)
    train(rig, ddp, fused_adam(net))
    rig.record_all(ddp)


def tied(rig):
    train_with_sgd(rig, rig.load("Tied"))


def mixed_types(rig):
    train_with_sgd(rig, rig.load("Mixed"))


def complex_parameter(rig):
    train_with_sgd(rig, Complex(0.3 / (1 + rig.rank)))


def train_with_common_layer(rig, together):
    a, b = rig.load("Mlp"), rig.load("Mlp")
    b.linear1 = a.linear1
    ddp_a, ddp_b = rig.wrap(a), rig.wrap(b)
    optimizer = sgd(torch.nn.ModuleList((a, b)))
    for step in range(STEPS):
        optimizer.zero_grad()
        first = rig.loss(ddp_a(rig.x(step)), step)
        if not together:
            first.backward()
        second = rig.loss(ddp_b(rig.x(STEPS - 1 - step)), STEPS - 1 - step)
        (first + second if together else second).backward()
        optimizer.step()
    rig.record_tensors(a, "a.")
    rig.record_tensors(b, "b.")
    rig.record_losses()


def common_layer(rig):
    train_with_common_layer(rig, True)


def common_layer_in_turns(rig):
    train_with_common_layer(rig, False)


def frozen(rig):
    net = rig.load("Mlp")
    net.linear1.bias.requires_grad_(False)
    net.linear2.weight.requires_grad_(False)
    train_with_sgd(rig, net)


def several_forwards(rig):
    net = rig.load("Mlp")
    ddp = rig.wrap(net)
    optimizer = sgd(net)
    for step in range(STEPS):
        optimizer.zero_grad()
        first = rig.loss(ddp(rig.x(step)), step)
        second = rig.loss(ddp(rig.x(STEPS - 1 - step)), STEPS - 1 - step)
        (first + second).backward()
        optimizer.step()
    rig.record_all(ddp)


def train_with_hook(rig, hook, state=None, **options):
    net = rig.load("Mlp")
    ddp = rig.wrap(net, **options)
    ddp.register_comm_hook(state, hook)
    train(rig, ddp, sgd(net))
    rig.record_all(ddp)


def fp16_hook(rig):
    train_with_hook(rig, default_hooks.fp16_compress_hook)


def bf16_hook(rig):
    # Has a name of our own: DistributedDataParallel allows the hook of the original name on GPUs
    # only.
    train_with_hook(rig, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket))


def train_with_power_sgd(rig, rank, **options):
    # One bucket: with several pending buckets, PyTorch's hook starts collectives on several
    # threads, so their order may differ between ranks.
    state = powerSGD_hook.PowerSGDState(None, rank, start_powerSGD_iter=3, **options)
    train_with_hook(rig, powerSGD_hook.powerSGD_hook, state, bucket_cap_mb=None)


def power_sgd(rig):
    train_with_power_sgd(rig, 1)


def power_sgd_of_rank_4(rig):
    train_with_power_sgd(rig, 4, batch_tensors_with_same_shape=True)


def power_sgd_from_cold(rig):
    train_with_power_sgd(rig, 2, warm_start=False, orthogonalization_epsilon=1e-8, random_seed=5)


def power_sgd_in_buckets(rig):
    # The hook waits for each bucket, so that ranks start collectives in one order.
    def hook(state, bucket):
        done = torch.futures.Future()
        done.set_result(powerSGD_hook.powerSGD_hook(state, bucket).wait())
        return done

    state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=3)
    train_with_hook(rig, hook, state)


def post_local_sgd(rig):
    net = rig.load("Mlp")
    ddp = rig.wrap(net)
    optimizer = sgd(net)
    alone, _ = dist.new_subgroups(1)
    state = post_localSGD_hook.PostLocalSGDState(None, alone, start_localSGD_iter=4)
    ddp.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = averagers.PeriodicModelAverager(period=3, warmup_steps=4)
    for step in range(STEPS):
        optimizer.zero_grad()
        rig.loss(ddp(rig.x(step)), step).backward()
        optimizer.step()
        averager.average_parameters(net.parameters())
    rig.record_all(ddp)


def gradient_views(rig):
    train_with_sgd(rig, rig.load("Mlp"), gradient_as_bucket_view=True)


def kept_gradients(rig):
    net = rig.load("Mlp")
    ddp = rig.wrap(net)
    optimizer = sgd(net)
    for step in range(STEPS):
        optimizer.zero_grad()
        rig.loss(ddp(rig.x(step)), step).backward()
        kept = [parameter.grad for parameter in net.parameters()]
        optimizer.zero_grad()
        rig.loss(ddp(rig.x(STEPS - 1 - step)), STEPS - 1 - step).backward()
        for parameter, first in zip(net.parameters(), kept):
            parameter.grad.add_(first)
        optimizer.step()
    rig.record_all(ddp)


def set_data_on_gradients(rig):
    net = rig.load("Mlp")
    ddp = rig.wrap(net)
    optimizer = sgd(net)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        rig.loss(ddp(rig.x(step)), step).backward()
        optimizer.step()
        for parameter in net.parameters():
            parameter.grad.data = parameter.grad.clone()
    rig.record_all(ddp)


def set_data_on_gradient_views(rig):
    # With gradient_as_bucket_view, PyTorch's `.grad` is the reducer's own tensor. set_data() moves
    # it out of the bucket. From then on, the average of an earlier step is applied.
    set_data_on_gradients(rig)


def flat_gradients(rig):
    net = rig.load("Mlp")
    ddp = rig.wrap(net)
    optimizer = sgd(net)
    flat = torch.zeros(sum(parameter.numel() for parameter in net.parameters()))
    sizes = [parameter.numel() for parameter in net.parameters()]
    for parameter, part in zip(net.parameters(), flat.split(sizes)):
        parameter.grad = part.view_as(parameter)
    for step in range(STEPS):
        flat.zero_()
        rig.loss(ddp(rig.x(step)), step).backward()
        optimizer.step()
    rig.record("flat", flat)
    rig.record_all(ddp)


SCENARIOS = (
    small_buckets, default_buckets, bucket_list, in_double, sampled_cnn, large_mlp, accumulation,
    accumulation_onto_zeros, adam, tied, mixed_types, complex_parameter, common_layer,
    common_layer_in_turns, frozen, several_forwards, fp16_hook, bf16_hook, power_sgd,
    power_sgd_of_rank_4, power_sgd_from_cold, power_sgd_in_buckets, post_local_sgd,
    gradient_views, kept_gradients, set_data_on_gradients, set_data_on_gradient_views,
    flat_gradients,
)
