# SPDX-License-Identifier: Apache-2.0
"""Training steps of all sides of bench.py, on existing hosts."""

from jobs import measure, sides

# Names of bench/ddp. Gradients of "bf16" travel as bfloat16. PyTorch's hook for bfloat16 needs a
# GPU, so float16's hook stands in for it. PowerSGD has rank 4.
SIDES = ("Lockstep", "bf16", "PowerSGD", "PyTorch", "PyTorch fp16", "PyTorch PowerSGD")

MODEL, BATCH, WARMUP, STEPS = "cnn", 32, 5, 30


def measure_training(absent, options, job, link, number, say):
    """Returns the figures of bench/ddp, by side."""
    warmup, steps = (2, STEPS // 3) if options.quick else (WARMUP, STEPS)
    case = sides.Case(MODEL, BATCH, job.ranks, False, warmup, steps)
    figures = {}
    for side in measure.in_turn(number, SIDES):
        if not (side.startswith("PyTorch") and "PyTorch" in absent):
            say(f"training, {side}")
            figures[side] = job.train(side, case)
    return figures


# --- Local steps ----------------------------------------------------------------------------------

# Kinds of bench_hosts_local_steps: each step synchronous, DiLoCo, and no communication at all. With
# --quick, losses are those of a training that has hardly begun.
KINDS = ("synchronous", "diloco", "alone")
SYNC_EVERY, LOCAL_STEPS, QUICK_STEPS = 100, 2000, 200


def measure_local_steps(options, job, number, say):
    """Returns samples/s and final loss, by kind."""
    figures = {}
    for kind in measure.in_turn(number, KINDS):
        say(f"local steps, {kind}")
        output = job.by_lockstep("bench_hosts_local_steps", "--kind", kind, "--steps",
                                 QUICK_STEPS if options.quick else LOCAL_STEPS, "--sync-every",
                                 SYNC_EVERY)
        words = output.split()
        figures[kind] = {name: float(words[words.index(name) + 1])
                         for name in ("samples_per_second", "loss")}
    return figures
