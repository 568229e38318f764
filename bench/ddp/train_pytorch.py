# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of bench.py: does the same as train.cpp, under DistributedDataParallel and Gloo,
with their fastest settings."""

import argparse
import functools
import os
import pathlib
import resource
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer

import models


def no_pause(_until):
    pass


def sleep(until):
    time.sleep(max(0, until - time.perf_counter()))


def spin(until):
    while time.perf_counter() < until:
        pass


def copy(until):
    """Copies memory at 1 Gbit/s, the rate at which gradients arrive over such a link."""
    while time.perf_counter() < until:
        blocks = blocks_to_copy()
        blocks[0].copy_(blocks[1])
        sleep(min(until, time.perf_counter() + 0.003))


@functools.cache
def blocks_to_copy():
    return torch.zeros(2, 375_000, dtype=torch.uint8)  # The bytes that arrive in 3 ms.


PAUSES = {"none": no_pause, "sleep": sleep, "spin": spin, "copy": copy}


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=models.WORKLOADS, default="cnn")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--backend", help="gloo, with --device cuda nccl")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--zero", action="store_true", help="ZeroRedundancyOptimizer")
    parser.add_argument("--find-unused", action="store_true")
    parser.add_argument("--fp16", action="store_true", help="gradients travel as float16")
    parser.add_argument("--power-sgd", type=int, metavar="RANK",
                        help="gradients travel as matrices of this rank")
    parser.add_argument("--amp", action="store_true",
                        help="compute in bfloat16, on channels_last images and weights")
    parser.add_argument("--operators", type=pathlib.Path, metavar="FOLDER",
                        help="then record LibTorch's operators of as many steps, in a file there")
    parser.add_argument("--on-cue", action="store_true",
                        help="print `ready` after the warm-up, and go on at a line of input")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--pause", choices=PAUSES, default="none",
                        help="what is done between backward and optimizer, in place of a wait")
    parser.add_argument("--pause-ms", type=float, default=70)
    parser.add_argument("--broadcast-buffers", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    options.backend = options.backend or ("nccl" if options.device == "cuda" else "gloo")
    return options


def synchronize(options):
    """Waits until the device has run all kernels."""
    if options.device == "cuda":
        torch.cuda.synchronize()


def distributed(net, options):
    # With several buckets, the ranks may start collectives of PowerSGD's hook in different orders,
    # which Gloo does not survive.
    buckets = {"bucket_cap_mb": 25} if options.power_sgd else {}
    ddp = nn.parallel.DistributedDataParallel(
        net, **buckets, broadcast_buffers=options.broadcast_buffers, gradient_as_bucket_view=True,
        find_unused_parameters=options.find_unused, static_graph=not options.find_unused)
    if options.fp16:  # Its hook for bfloat16 needs a GPU.
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if options.power_sgd:
        state = powerSGD_hook.PowerSGDState(None, options.power_sgd, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return ddp


def optimizer_of(net, options):
    if options.zero:
        return ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam,
                                       parameters_as_bucket_view=True, lr=1e-4, fused=True)
    return torch.optim.Adam(net.parameters(), 1e-4, fused=True)


def step(net, adam, inputs, targets, options):
    """Returns the seconds of forward, loss and backward, and optimizer."""
    begun = time.perf_counter()
    with torch.autocast(options.device, torch.bfloat16, enabled=options.amp):
        logits = net(inputs)
        forwarded = time.perf_counter()
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
    loss.backward()
    differentiated = time.perf_counter()
    PAUSES[options.pause](differentiated + options.pause_ms / 1e3)
    paused = time.perf_counter()
    adam.step()
    adam.zero_grad()
    return forwarded - begun, differentiated - forwarded, time.perf_counter() - paused


def train(options):
    """Returns the seconds of all timed steps, and of their parts, on this rank; their CPU time and
    their page faults."""
    torch.manual_seed(0)
    net, inputs, targets = (part.to(options.device)
                            for part in models.WORKLOADS[options.model](options.batch))
    if options.amp:
        net = net.to(memory_format=torch.channels_last)
        if inputs.dim() == 4:
            inputs = inputs.to(memory_format=torch.channels_last)
    if not options.alone:
        net = distributed(net, options)
    if options.compile:
        net = torch.compile(net)
    adam = optimizer_of(net, options)
    for _ in range(options.warmup):
        step(net, adam, inputs, targets, options)
    synchronize(options)
    if not options.alone:
        dist.barrier()
    if options.on_cue:
        print("ready", flush=True)
        input()
    before, started = usage(), time.perf_counter()
    times = [step(net, adam, inputs, targets, options) for _ in range(options.steps)]
    synchronize(options)
    if not options.alone:
        dist.barrier()
    seconds, after = time.perf_counter() - started, usage()
    if options.operators:
        record_operators(options.operators, options.steps,
                         lambda: step(net, adam, inputs, targets, options))
    return seconds, [sum(part) for part in zip(*times)], [b - a for a, b in zip(before, after)]


def record_operators(folder, steps, train_once):
    torch.ones(240 << 20)  # Makes memory resident: see train.cpp.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as record:
        for _ in range(steps):
            train_once()
    record.export_chrome_trace(str(folder / f"{os.getpid()}.json"))


def usage():
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime, own.ru_minflt


def main():
    options = parse_options()
    torch.set_num_threads(1)
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if not options.alone:
        if options.backend == "lockstep":
            import lockstep  # noqa: F401, registers it
        dist.init_process_group(options.backend)
    rank, ranks = (0, 1) if options.alone else (dist.get_rank(), dist.get_world_size())
    seconds, parts, (cpu, faults) = train(options)
    if rank == 0:
        print("samples_per_second", options.batch * options.steps * ranks / seconds)
        forward, backward, optimizer = (1e3 * part / options.steps for part in parts)
        print("step_ms forward", forward, "backward", backward, "optimizer", optimizer,
              "cpu", 1e3 * cpu / options.steps, "faults", faults / options.steps, flush=True)
    if not options.alone:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
