# SPDX-License-Identifier: Apache-2.0
"""Training steps of all sides of bench.py, on existing hosts."""

from jobs import measure, sides

# Names of bench/ddp. "bf16" sends gradients as bfloat16. PyTorch's hook for bfloat16 needs a GPU,
# so float16's hook is compared instead.
#
# PowerSGD has the same options on both sides. With several buckets, PyTorch's hook starts
# collectives in different orders on the ranks, and Gloo ends the process. It therefore gets a
# single bucket of up to 25 MB. "PowerSGD 25 MB" has the same bucket, "PowerSGD" the default
# buckets.
SIDES = ("Lockstep", "bf16", "PowerSGD", "PowerSGD 25 MB", "PyTorch", "PyTorch fp16",
         "PyTorch PowerSGD")

MODEL, WARMUP, STEPS = "cnn", 5, 30

# Samples of a rank in a step, by ranks on a host. The gradients need 70 ms on 1 Gbit/s. A batch of
# 8 computes for a fraction of it, one of 32 for half of it. Two ranks on one core compute for all
# of it.
BATCHES = {1: (8, 32), 2: (32,)}


def measure_training(absent, options, job, link, number, say):
    """Returns the figures of bench/ddp, by batch and side."""
    warmup, steps = (3, STEPS // 2) if options.quick else (WARMUP, STEPS)
    figures = {}
    for batch in BATCHES[job.ranks]:
        case = sides.Case(MODEL, batch, job.ranks, False, warmup, steps)
        figures[batch] = {}
        for side in measure.in_turn(number, SIDES):
            if not (side.startswith("PyTorch") and "PyTorch" in absent):
                say(f"training, {side}, batch {batch}")
                figures[batch][side] = job.train(side, case)
    return figures


# --- Local steps ----------------------------------------------------------------------------------

# Kinds of bench_hosts_local_steps: each step synchronous, DiLoCo, and no communication.
KINDS = ("synchronous", "diloco", "alone")
SYNC_EVERY = 100

# Steps of a timed run: DiLoCo synchronises twice. Synchronous steps are slow and all alike.
TIMED_STEPS = {"synchronous": 100, "diloco": 200, "alone": 200}

# Steps until losses are compared: two epochs of the two ranks.
LOSS_STEPS = 2000


def measure_local_steps(options, job, number, say):
    """Returns samples/s, by kind."""
    figures = {}
    for kind in measure.in_turn(number, KINDS):
        say(f"local steps, {kind}")
        steps = TIMED_STEPS[kind] // 2 if options.quick else TIMED_STEPS[kind]
        figures[kind] = train_locally(job, kind, steps)["samples_per_second"]
    return figures


def measure_losses(job, say):
    """Returns the final loss of the test images, by kind. It is the same on every link."""
    losses = {}
    for kind in ("synchronous", "diloco"):
        say(f"final loss, {kind}")
        losses[kind] = train_locally(job, kind, LOSS_STEPS)["loss"]
    return losses


def train_locally(job, kind, steps):
    words = job.by_lockstep("bench_hosts_local_steps", "--kind", kind, "--steps", steps,
                            "--sync-every", SYNC_EVERY).split()
    return {name: float(words[words.index(name) + 1]) for name in ("samples_per_second", "loss")}
