#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every example in examples/python trains, with the results that it has with Gloo. On two ranks
these are the same bits, on four the same losses and weights except for rounding.

examples_test.py [--ranks N...]
"""

import argparse
import importlib
import os
import pathlib
import sys
import tempfile
import time

from forked_ranks import Ranks
from plugin_or_skip import torch  # noqa: F401

import numpy  # noqa: E402
import torch.distributed as dist  # noqa: E402

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"
SHORT = ["--steps", "12"]
# By ranks: what is run.
RUNS = {
    2: [("ddp", ["--epochs", "2", "--samples", "512"]),
        ("ddp", ["--epochs", "2", "--samples", "512", "--workers", "1"]),
        ("fsdp", SHORT), ("fsdp", [*SHORT, "--bf16"]), ("tensor_parallel", SHORT),
        ("pipeline", SHORT), ("pipeline", [*SHORT, "--schedule", "GPipe"])],
    4: [("ddp", ["--epochs", "2", "--samples", "1024"]), ("fsdp", SHORT),
        ("tensor_parallel", SHORT), ("pipeline", SHORT)],
}
# By ranks. Sums of four have several orders. AdamW divides by the gradient's size, so rounding of a
# gradient near zero moves its weight by a part of the learning rate.
OF_LOSSES = {2: 0, 4: 1e-6}
OF_WEIGHTS = {2: 0, 4: 1e-3}


def call(rank, ranks, folder, name, arguments):
    """Calls main() of an example as a rank that torchrun has started."""
    store = dist.TCPStore("localhost", 0, is_master=True) if rank == 0 else None
    port = folder / "port"
    if store:
        port.with_suffix(".new").write_text(str(store.port))
        port.with_suffix(".new").rename(port)
    while not port.exists():
        time.sleep(0.01)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost",
                   "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
                   "MASTER_PORT": port.read_text(), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    losses, state = sys.modules[name].main(arguments)
    (folder / f"ended.{rank}").touch()
    while store and len(list(folder.glob("ended.*"))) < ranks:
        time.sleep(0.01)
    # As tensors they would use shared memory, which ends with this process.
    return losses, {name: tensor.double().numpy() for name, tensor in state.items()}


def results(ranks, name, arguments):
    """Returns losses and weights of each rank."""
    with tempfile.TemporaryDirectory() as folder:
        with Ranks(ranks, call, ranks, pathlib.Path(folder), name, arguments) as running:
            ends = running.ends()
    failures = [ended.error or f"exit code {ended.exit_code}" for ended in ends
                if ended.error or ended.exit_code]
    assert not failures, f"{name} {arguments} on {ranks} ranks:\n" + "\n".join(failures)
    return [ended.value for ended in ends]


def difference(ours, theirs):
    """Returns the largest one of all numbers."""
    assert ours.keys() == theirs.keys()
    return max(numpy.abs(numpy.subtract(ours[name], theirs[name])).max(initial=0)
               for name in theirs)


def compare(ranks, name, arguments):
    begun = time.monotonic()
    ours = results(ranks, name, [*arguments, "--backend", "lockstep"])
    theirs = results(ranks, name, [*arguments, "--backend", "gloo"])
    of_losses = max(difference({"losses": mine}, {"losses": other})
                    for (mine, _), (other, _) in zip(ours, theirs))
    of_weights = max(difference(mine, other) for (_, mine), (_, other) in zip(ours, theirs))
    losses = next(losses for losses, _ in theirs if losses)
    print(f"{name} {' '.join(arguments)} on {ranks} ranks: losses {losses[0]:.3f} to "
          f"{losses[-1]:.3f}, largest differences {of_losses:.2g}, of weights {of_weights:.2g}, "
          f"{time.monotonic() - begun:.1f} s", flush=True)
    assert losses[-1] < 0.9 * losses[0], "nothing was learnt"
    assert of_losses <= OF_LOSSES[ranks] and of_weights <= OF_WEIGHTS[ranks], "not as with Gloo"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", choices=RUNS, default=[2])
    sys.path.insert(0, str(EXAMPLES))
    for ranks in parser.parse_args().ranks:
        for name, arguments in RUNS[ranks]:
            importlib.import_module(name)  # Here, so that not every rank loads half of torch.
            compare(ranks, name, arguments)


if __name__ == "__main__":
    main()
