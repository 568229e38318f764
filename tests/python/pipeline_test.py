#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lockstep::make_pipeline_order() has the orders of torch.distributed.pipelining's schedules.

PyTorch's schedules are made with stages that compute nothing, without processes. Those of one
stage for each rank run, because the table of 1F1B differs: its last rank begins with microbatch 1.
The other tables are compared before PyTorch adds communication to them. Both read and
write files of orders.
"""

import itertools
import pathlib
import subprocess
import sys
import tempfile

from torch_or_skip import torch

from torch.distributed.pipelining import schedules  # noqa: E402

RANKS = range(1, 9)
MICROBATCHES = range(1, 33)
STAGES_PER_RANK = range(1, 5)
NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "looped_bfs": "LoopedBFS",
    "zb1p": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
}
SINGLE = ("gpipe", "1f1b")
LARGEST_FILES = (5, 10)  # Ranks and microbatches; PyTorch's own check takes long for more.


class Stage:
    """Computes nothing, and records for which microbatch it was called."""

    is_first = is_last = False
    has_backward = True
    group_rank = 0
    submod = None

    def __init__(self, index, stages, ranks):
        self.stage_index = index
        self.num_stages = stages
        self.group_size = ranks
        self.actions = []

    def forward_one_chunk(self, microbatch, *_, **__):
        self.actions.append(f"{self.stage_index}F{microbatch}")

    def backward_one_chunk(self, microbatch, **_):
        self.actions.append(f"{self.stage_index}B{microbatch}")

    def no_messages(self, _):
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = no_messages

    def perform_reduce_grad(self, _):
        pass

    def release_fwd_send_outputs(self, _):  # Since PyTorch 2.15.
        pass


def run_single(kind, ranks, microbatches):
    order = []
    for rank in range(ranks):
        stage = Stage(rank, ranks, ranks)
        schedule = kind(stage, microbatches, loss_fn=lambda *_: None)
        schedule._initialize_stage = lambda *_: None
        schedule._step_microbatches()
        order.append(stage.actions)
    return order


def make(name, ranks, microbatches, stages_per_rank):
    stages = [Stage(i * ranks, ranks * stages_per_rank, ranks) for i in range(stages_per_rank)]
    kind = schedules.get_schedule_class(NAMES[name])
    return kind(stages, microbatches, loss_fn=lambda *_: None)


def texts(order):
    return [[str(action) for action in order[rank] if action is not None] for rank in sorted(order)]


def expected(name, ranks, microbatches, stages_per_rank):
    """Returns the actions of each rank; nothing if PyTorch rejects the shape."""
    try:
        if name not in SINGLE:
            return texts(make(name, ranks, microbatches, stages_per_rank).pipeline_order)
        if stages_per_rank == 1:
            return run_single(schedules.get_schedule_class(NAMES[name]), ranks, microbatches)
    except ValueError:
        pass
    return None


def compare_orders(program):
    grid = list(itertools.product(NAMES, RANKS, MICROBATCHES, STAGES_PER_RANK))
    lines = "".join(" ".join(map(str, case)) + "\n" for case in grid)
    answer = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    ours = iter(answer.stdout.splitlines())
    refused = more = 0
    for case in grid:
        theirs = expected(*case)
        first = next(ours)
        if first.startswith("refused"):
            assert theirs is None, f"{case}: PyTorch has an order, and we have {first}"
            refused += 1
            continue
        order = [line.split() for line in (first, *itertools.islice(ours, case[1] - 1))]
        if theirs is None:
            name, ranks, microbatches, stages_per_rank = case
            assert (name, stages_per_rank) == ("1f1b", 1) and microbatches < ranks, case
            more += 1
        else:
            assert order == theirs, f"{case}: PyTorch has\n{theirs}\nand we have\n{order}"
    assert next(ours, None) is None, "more lines than ranks"
    print(f"{len(grid) - refused - more} orders are equal, with torch {torch.__version__}; both "
          f"refuse {refused} shapes, PyTorch alone {more} of 1F1B")


def compare_files(program, folder):
    count = 0
    largest_ranks, largest_microbatches = LARGEST_FILES
    for name, ranks, stages in itertools.product(NAMES, (1, 2, largest_ranks), (1, 2, 3)):
        if name in SINGLE or (name == "zbv" and stages != 2):
            continue
        schedule = make(name, ranks, largest_microbatches, stages)
        theirs, ours = str(folder / "theirs.csv"), str(folder / "ours.csv")
        schedule._dump_csv(theirs, format="compute_only")
        subprocess.run([program, theirs, ours], check=True)
        before = texts(schedule.pipeline_order)
        schedule.pipeline_order = {}
        schedule._load_csv(ours, format="compute_only")
        assert texts(schedule.pipeline_order) == before, (name, ranks, stages)
        count += 1
    print(f"{count} files went from PyTorch to us and back")


def main():
    # Adds sends and receives, which takes minutes for all shapes.
    prepare = schedules._PipelineScheduleRuntime._prepare_schedule_with_comms
    schedules._PipelineScheduleRuntime._prepare_schedule_with_comms = lambda *_: None
    compare_orders(sys.argv[1])
    schedules._PipelineScheduleRuntime._prepare_schedule_with_comms = prepare
    with tempfile.TemporaryDirectory() as folder:
        compare_files(sys.argv[1], pathlib.Path(folder))


main()
