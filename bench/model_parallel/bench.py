#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures steps of a GPT that two ranks hold together. The kinds, and the peers of each:

  tensor         its layers cut: PyTorch's DTensor; one rank alone with the whole batch
  fully-sharded  with half of the batch each: PyTorch's fully_shard(); two ranks that train alone
  pipeline       of two stages and four microbatches: torch.distributed.pipelining; a simulation of
                 stages that are measured alone
  zb1p           1F1B, and the gain that the simulation predicts
  interleaved    in four stages: the same

pipeline-hosts and fully-sharded-hosts are the same on two hosts with 1 Gbit/s between them, the
latter with two ranks a host. The hosts are network namespaces, which need root, each with its share
of the CPUs. PyTorch runs over Gloo, under torchrun. Every side has one thread per rank, on this
host. Prints the median and range of the rounds' ratios; above 1, ours is faster.
"""

import contextlib
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "hosts"))
import jobs  # noqa: E402, from a folder beside this one
from jobs import measure  # noqa: E402

EXAMPLES = """examples:
  ./dev bench model-parallel
  ./dev bench model-parallel --kinds tensor --widths 128 --rounds 9
  ./dev bench model-parallel --kinds pipeline-hosts --widths 128
"""

# By width: tokens of a sequence, steps.
SHAPES = {128: (64, 30), 256: (128, 12), 512: (128, 6)}
# By kind, with the peer that does not communicate.
SIDES = {"tensor": ("Lockstep", "PyTorch", "one rank"),
         "fully-sharded": ("Lockstep", "PyTorch", "halves"),
         "pipeline": ("Lockstep", "PyTorch", "simulated"),
         "pipeline-hosts": ("Lockstep", "PyTorch"),
         "fully-sharded-hosts": ("Lockstep", "PyTorch"),
         "zb1p": ("zb1p", "1f1b", "zb1p simulated", "1f1b simulated"),
         "interleaved": ("interleaved", "1f1b", "interleaved simulated", "1f1b simulated")}
# Blocks of the first stage, by width: the output layer costs as much as several blocks.
BLOCKS = {128: 4, 256: 3, 512: 3}
BATCH = 4
LINK = "1 Gbit/s"  # Between hosts.
# By kind, the ranks of each host.
ON_HOSTS = {"pipeline-hosts": 1, "fully-sharded-hosts": 2}


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)
    parser.add_argument("--kinds", nargs="+", choices=SIDES, default=list(SIDES), metavar="KIND",
                        help="all of " + " ".join(SIDES))
    parser.add_argument("--widths", type=int, nargs="+", choices=SHAPES, default=list(SHAPES),
                        metavar="N", help="of the model: all of 128 256 512")
    parser.add_argument("--vocabulary", type=int, default=8192, help="8192")
    parser.add_argument("--ranks", type=int, default=2, help="2")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs: 5")
    options = parser.parse_args()
    if min(options.ranks, options.rounds, options.vocabulary) < 1 or BATCH % options.ranks:
        parser.error(f"rounds and vocabulary are positive, and ranks a divisor of {BATCH}")
    if set(ON_HOSTS) & set(options.kinds) and (why := jobs.network_hosts.why_not()):
        parser.error(f"no hosts can be made here: {why}; --kinds leaves them out")
    if "pipeline-hosts" in options.kinds and options.ranks != jobs.HOSTS:
        parser.error(f"pipeline-hosts has {jobs.HOSTS} ranks")
    measure.require_built(parser, options, "bench_model_parallel")
    if why := measure.why_no_torch(options.python):
        parser.error(why)
    return options


def milliseconds(kind, side, width, options, job):
    """`job` starts the ranks on hosts, if not all are on this one."""
    length, steps = SHAPES[width]
    is_pipeline = kind in ("pipeline", "pipeline-hosts", "zb1p", "interleaved")
    of_rank = {"fully-sharded": options.ranks, "fully-sharded-hosts": 2 * jobs.HOSTS}
    batch = BATCH // of_rank.get(kind, 1)
    shape = ["--width", width, "--layers", 4, "--heads", 8, "--vocabulary", options.vocabulary,
             "--length", length, "--batch", batch, "--steps", steps,
             "--parallel", "pipeline" if is_pipeline else
             "none" if side in ("one rank", "halves") else kind.removesuffix("-hosts")]
    if is_pipeline:
        schedule = "1f1b" if kind.startswith("pipeline") else side.split()[0]
        # The embedding is the first layer, before the blocks.
        cut = ([2, 4, 5] if schedule == "interleaved" else [1 + BLOCKS[width]])
        shape += ["--cut", *cut]
        if side != "PyTorch":
            shape += ["--schedule", schedule]
        if side.endswith("simulated"):
            shape += ["--simulate"]
    ranks = 1 if side == "one rank" else options.ranks
    program, script = "bench_model_parallel", pathlib.Path(__file__).parent / "train_pytorch.py"
    if job:
        output = (job.by_torchrun(script, *shape) if side == "PyTorch" else
                  job.by_lockstep(program, *shape))
    else:
        output = measure.run(measure.torchrun(options.python, ranks, script, *shape)
                             if side == "PyTorch" else
                             measure.lockstep_run(options.build, ranks, program, *shape))
    return json.loads(output[output.index("{"):output.index("}") + 1])["ms"]


def measured(kind, width, options, started):
    rounds = []
    ranks = ON_HOSTS.get(kind)
    with jobs.hosts_of(LINK) if ranks else contextlib.nullcontext() as hosts:
        job = jobs.Job(hosts, ranks, options) if ranks else None
        for number in range(options.rounds):
            rounds.append({})
            for side in measure.in_turn(number, SIDES[kind]):
                measure.progress(started, f"{kind}, width {width}, round {number + 1}: {side}")
                rounds[-1][side] = milliseconds(kind, side, width, options, job)
    measure.progress(started, "")
    result = {"kind": kind, "width": width, "rounds": rounds}
    for label, peer, ours in ratios(kind):
        result[label] = measure.spread([one[peer] / one[ours] for one in rounds])
    return result


def ratios(kind):
    """Label of each ratio, and the sides that it divides."""
    sides = SIDES[kind]
    if "Lockstep" in sides:
        return [(f"to {peer}", peer, "Lockstep") for peer in sides[1:]]
    return [("gain", sides[1], sides[0]), ("predicted gain", sides[3], sides[2])]


def main():
    options = parse_options()
    measure.warn_if_busy()
    started, results = time.monotonic(), []
    for kind in options.kinds:
        print(f"{kind}: ms a step of a GPT of 4 layers, {options.ranks} ranks: medians of "
              f"{options.rounds} rounds\n{'width':>6}"
              + "".join(f"{side:>{column(side)}}" for side in SIDES[kind])
              + "".join(f"{label:>24}" for label, _, _ in ratios(kind)), flush=True)
        for width in options.widths:
            results.append(measured(kind, width, options, started))
            print(row(results[-1]), flush=True)
            measure.save(options, results)


def column(side):
    return max(10, len(side) + 2)


def row(result):
    kind = result["kind"]
    times = "".join(
        f"{statistics.median(one[side] for one in result['rounds']):>{column(side)}.1f}"
        for side in SIDES[kind])
    return f"{result['width']:>6}" + times + "".join(
        f"{ratio['ratio']:>8.2f} ({ratio['ratio_low']:.2f} - {ratio['ratio_high']:.2f})".rjust(24)
        for ratio in (result[label] for label, _, _ in ratios(kind)))


if __name__ == "__main__":
    main()
