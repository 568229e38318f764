# SPDX-License-Identifier: Apache-2.0
"""Training steps of all sides of bench.py, on existing hosts."""

from jobs import measure, sides

# Names of bench/ddp. Gradients of "bf16" travel as bfloat16. PyTorch's hook for bfloat16 needs a
# GPU, so float16's hook stands in for it.
SIDES = ("Lockstep", "bf16", "PyTorch", "PyTorch fp16")

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
