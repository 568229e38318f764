# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of bench.py: does the same as ours.cpp, with torch.distributed.checkpoint's
defaults."""

import argparse
import json
import pathlib
import shutil
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import files


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=pathlib.Path, required=True)
    parser.add_argument("--gb", type=float, default=1)
    parser.add_argument("--saves", type=int, default=2)
    parser.add_argument("--cold", action="store_true")
    return parser.parse_args()


def state_of(gigabytes):
    """Makes 60 tensors of four sizes, and two moments of each; the same on all ranks."""
    torch.manual_seed(0)
    layers = 15
    unit = int(gigabytes * 1e9 / 12 / layers / (1 + 16 + 64 + 192))
    model, optimizer = {}, {}
    for layer in range(layers):
        for width in (1, 16, 64, 192):
            name = f"layers.{layer}.{width}.weight"
            model[name] = torch.rand(width, unit)
            optimizer[name] = {
                moment: torch.rand(width, unit) for moment in ("exp_avg", "exp_avg_sq")
            }
    return {"model": model, "optimizer": optimizer}


def tensors_in(state):
    for value in state.values():
        if isinstance(value, dict):
            yield from tensors_in(value)
        else:
            yield value


def sum_of(state):
    return sum(tensor.sum(dtype=torch.float64).item() for tensor in tensors_in(state))


def on_all(value, operation):
    tensor = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(tensor, operation)
    return tensor.item()


def seconds_of(act):
    """Returns the time of the slowest rank."""
    dist.barrier()
    started = time.perf_counter()
    act()
    return on_all(time.perf_counter() - started, dist.ReduceOp.MAX)


def save(state, options):
    """Returns the seconds of each save. Removes earlier checkpoints first, outside of the timed
    part."""
    taken = []
    for number in range(options.saves):
        dist.barrier()
        if dist.get_rank() == 0 and number > 0:
            shutil.rmtree(options.dir / str(number - 1))
        taken.append(seconds_of(lambda: dcp.save(state, checkpoint_id=options.dir / str(number))))
    return taken


def load(state, folder, total):
    for tensor in tensors_in(state):
        tensor.zero_()
    seconds = seconds_of(lambda: dcp.load(state, checkpoint_id=folder))
    assert sum_of(state) == total, "what was loaded is not what was saved"
    return seconds


def measured(options):
    state = state_of(options.gb)
    total = sum_of(state)
    peak = files.PeakMemory()
    figures = {"save": save(state, options)}
    figures["memory"] = on_all(peak.growth(), dist.ReduceOp.SUM)
    last = options.dir / str(options.saves - 1)
    figures["bytes"] = files.bytes_in(last)
    dist.barrier()
    if options.cold and dist.get_rank() == 0:
        files.drop_cached(last)
    first = load(state, last, total)
    figures |= {"load_cold": first} if options.cold else {}
    figures["load"] = load(state, last, total)
    return figures


def main():
    options = parse_options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    figures = measured(options)
    if dist.get_rank() == 0:
        print("figures", json.dumps(figures), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
