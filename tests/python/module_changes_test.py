#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's column of the table "Changes after construction" in docs/guide/data-parallel.md: each
row is run under torch.nn.parallel.DistributedDataParallel on two ranks. The Lockstep column is
tested in C++, by tests that have to name each row."""

import datetime
import os
import pathlib
import re
import subprocess
import sys

from torch_or_skip import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs/guide/data-parallel.md"
TESTS = (ROOT / "lockstep/parallel/replicate/module_changes_test.cpp",
         ROOT / "tests/cuda/ddp_refusals_test.cpp")
RANKS = 2
SECONDS = 5  # The timeout of the row whose ranks make different numbers of calls.

FOLLOWED = "followed"
DRIFTS = "replicas drift apart"
ERROR = "an error"
NO_CALL = "no such call"


def net():
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh()
    return torch.nn.Sequential(*layers, torch.nn.Linear(8, 2))


class Training:
    """A net on this rank, with its DistributedDataParallel and an optimizer."""

    def __init__(self, rank, module=None, set_to_none=True, **options):
        self.rank, self.set_to_none = rank, set_to_none
        self.net = module or net()
        self.ddp = torch.nn.parallel.DistributedDataParallel(self.net, **options)
        self.use_sgd()

    def use_sgd(self):
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)

    def loss(self, step):
        generator = torch.Generator().manual_seed(100 * self.rank + step)
        x = torch.randn(5, 6, generator=generator).to(next(self.net.parameters()).dtype)
        return self.ddp(x).pow(2).mean()

    def run(self, steps=4):
        for step in range(steps):
            self.optimizer.zero_grad(self.set_to_none)
            self.loss(step).backward()
            self.optimizer.step()
        return self

    def outcome(self):
        for parameter in self.net.parameters():
            ours = parameter.detach().contiguous()
            all_ranks = [torch.empty_like(ours) for _ in range(RANKS)]
            torch.distributed.all_gather(all_ranks, ours)
            if not torch.equal(*all_ranks):
                return DRIFTS
        return FOLLOWED


# --- Rows: functions of the rank that return what happens -----------------------------------------


def set_data_on_gradients(rank):
    training = Training(rank).run(1)
    for parameter in training.net.parameters():
        parameter.grad.data = parameter.grad.clone()
    return training.run().outcome()


def keep_a_gradient(rank):
    training = Training(rank).run(2)
    kept = [parameter.grad for parameter in training.net.parameters()]
    copies = [gradient.clone() for gradient in kept]
    training.run()
    assert all(map(torch.equal, kept, copies))
    return training.outcome()


def save_a_gradient(rank, set_to_none=True):
    training = Training(rank, set_to_none=set_to_none).run(2)
    factor = torch.ones(8, requires_grad=True)
    saving = (factor * training.net[0].bias.grad).sum()
    training.run(1)
    saving.backward()
    return training.outcome()


def gradients_of_the_program(rank):
    training = Training(rank, set_to_none=False)
    parameters = list(training.net.parameters())
    flat = torch.zeros(sum(parameter.numel() for parameter in parameters))
    parts = flat.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts):
        parameter.grad = part.view_as(parameter)
    training.run()
    assert torch.equal(flat, torch.cat([parameter.grad.flatten() for parameter in parameters]))
    return training.outcome()


def freeze(rank, **options):
    training = Training(rank, **options).run(1)
    training.net[0].requires_grad_(False)
    training.run()
    training.net[0].requires_grad_(True)
    return training.run().outcome()


def freeze_on_one_rank(rank):
    training = Training(rank, find_unused_parameters=True).run(1)
    training.net[0].requires_grad_(rank == 0)
    return training.run().outcome()


def unfreeze(rank):
    module = net()
    module[0].requires_grad_(False)
    training = Training(rank, module).run(1)
    module[0].requires_grad_(True)
    return training.run().outcome()


def change(rank, edit, module=None, **options):
    """Trains, edits the net, and trains with an optimizer of its parameters."""
    training = Training(rank, module, **options).run(1)
    edit(training.net)
    training.use_sgd()
    return training.run().outcome()


def add(rank):
    torch.manual_seed(rank)
    return change(rank, lambda module: module.append(torch.nn.Linear(2, 2)))


def remove(module):
    module[2] = torch.nn.Identity()


def register_again(module):
    module[2].weight = torch.nn.Parameter(module[2].weight.detach().clone())


def pair(tied):
    module = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 6))
    if tied:
        tie(module)
    return module


def tie(module):
    module[2].weight = module[0].weight


def separate(module):
    module[2].weight = torch.nn.Parameter(module[0].weight.detach().clone())


def grow(module):
    module[4].weight.data, module[4].bias.data = torch.zeros(3, 8), torch.zeros(3)


def transpose_memory(module):
    for layer in module[0], module[2]:
        layer.weight.data = layer.weight.detach().t().contiguous().t()


def load(module, elsewhere):
    generator = torch.Generator().manual_seed(7)
    for parameter in module.parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if elsewhere:
            parameter.data = values
        else:
            with torch.no_grad():
                parameter.copy_(values)


def on_one(rank, edit):
    return change(rank, lambda module: edit(module) if rank == 1 else None)


def load_on_all_ranks(rank):
    outcomes = {change(rank, lambda module: load(module, elsewhere)) for elsewhere in (0, 1)}
    assert len(outcomes) == 1
    return outcomes.pop()


@torch.no_grad()
def lend(module):
    own = module[0].weight.clone()
    module[0].weight.zero_()
    module[0].weight.copy_(own)


def perturb(rank):
    training = Training(rank)
    weight = training.net[2].weight
    for step in range(3):
        training.optimizer.zero_grad()
        before = weight.detach().clone()
        with torch.no_grad():
            weight.add_(0.01 * (1 + rank))
        training.loss(step).backward()
        with torch.no_grad():
            weight.copy_(before)
        training.optimizer.step()
    return training.outcome()


def another_optimizer(rank):
    training = Training(rank).run()
    training.optimizer = torch.optim.Adam(training.net.parameters(), 0.01)
    return training.run().outcome()


def lbfgs(rank, averaged):
    timeout = None if averaged else datetime.timedelta(seconds=SECONDS)  # None: PyTorch's default.
    group = torch.distributed.new_group(timeout=timeout)
    training = Training(rank, process_group=group)
    optimizer = torch.optim.LBFGS(training.net.parameters(), line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = training.loss(0) + 10 * rank
        loss.backward()
        if averaged:
            loss = loss.detach() / RANKS
            torch.distributed.all_reduce(loss, group=group)
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return training.outcome()


# The first cell of each row, PyTorch's cell, and the test with its required outcome. If the outcome
# has several words, the cell must begin with them.
ROWS = (
    ("`set_data()` on `.grad`", FOLLOWED, set_data_on_gradients),
    ("a gradient is kept across `zero_grad()`", FOLLOWED, keep_a_gradient),
    ("a graph has saved a gradient", FOLLOWED, save_a_gradient),
    ("a pass adds to a gradient that a graph has saved", ERROR,
     lambda rank: save_a_gradient(rank, set_to_none=False)),
    ("`.grad` is a tensor of the program", FOLLOWED, gradients_of_the_program),
    ("parameters are frozen, and trained again", ERROR, freeze),
    ("the same with `find_unused_parameters`", FOLLOWED,
     lambda rank: freeze(rank, find_unused_parameters=True)),
    ("parameters are frozen on one rank, with `find_unused_parameters`", FOLLOWED,
     freeze_on_one_rank),
    ("a frozen parameter is trained later", DRIFTS, unfreeze),
    ("a parameter is added", DRIFTS, add),
    ("a parameter is removed", ERROR, lambda rank: change(rank, remove)),
    ("a parameter is registered again", ERROR, lambda rank: change(rank, register_again)),
    ("a parameter is registered again, with `find_unused_parameters`", DRIFTS,
     lambda rank: change(rank, register_again, find_unused_parameters=True)),
    ("two parameters are tied", ERROR, lambda rank: change(rank, tie, pair(False))),
    ("tied parameters are separated", DRIFTS, lambda rank: change(rank, separate, pair(True))),
    ("another type, such as `to(kDouble)`", DRIFTS,
     lambda rank: change(rank, torch.nn.Module.double)),
    ("another shape", ERROR, lambda rank: change(rank, grow)),
    ("another memory format", FOLLOWED, lambda rank: change(rank, transpose_memory)),
    ("another memory format on one rank", DRIFTS, lambda rank: on_one(rank, transpose_memory)),
    ("weights are loaded on all ranks", FOLLOWED, load_on_all_ranks),
    ("weights are loaded in place on one rank", DRIFTS,
     lambda rank: on_one(rank, lambda module: load(module, False))),
    ("weights get other storage on one rank, as by `torch::load()`", DRIFTS,
     lambda rank: on_one(rank, lambda module: load(module, True))),
    ("weights are changed within `edit_parameters()`", NO_CALL, None),
    ("weights are exchanged on one rank, and put back", FOLLOWED, lambda rank: on_one(rank, lend)),
    ("ranks perturb their weights for a pass", FOLLOWED, perturb),
    ("another optimizer", FOLLOWED, another_optimizer),
    ("another optimizer than that of `shard_gradients()`", NO_CALL, None),
    ("LBFGS with the mean of the losses", FOLLOWED, lambda rank: lbfgs(rank, averaged=True)),
    ("LBFGS with each rank's loss", ERROR, lambda rank: lbfgs(rank, averaged=False)),
)


def run_rows():
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    wrong = []
    for row, expected, function in ROWS:
        if function is None:
            continue
        try:
            outcome = function(rank)
        except RuntimeError as error:
            print(f"rank {rank}, {row}: {str(error).splitlines()[0]}")
            outcome = ERROR
        if outcome != expected:
            wrong.append(f"rank {rank}, {row}: {outcome}, not {expected}")
    sys.stdout.flush()
    if wrong:
        print("\n".join(wrong), file=sys.stderr, flush=True)
    os._exit(1 if wrong else 0)  # Groups with an error do not end in order.


def table_of(text):
    """The first and last cells of the rows of the section's table."""
    section = text.split("## Changes after construction", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    return [(cells[0].strip(), cells[-1].strip()) for cells in rows[1:]]


def main():
    table = table_of(GUIDE.read_text())
    tested = dict((row, outcome) for row, outcome, _ in ROWS)
    named = {row for test in TESTS
             for row in re.findall(r"^// Row: (.*)$", test.read_text(), re.MULTILINE)}
    untested_here = {"another device"}  # There may be no second device.
    for row, cell in table:
        assert row in named, f"no test in C++ names the row: {row}"
        assert row in untested_here or cell.startswith(tested[row]), f"{row}: {cell}"
    assert {row for row, _ in table} == named == set(tested) | untested_here
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
               str(RANKS), __file__, "--rows"]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    run_rows() if "--rows" in sys.argv else main()
