#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decodes a GPT token by token, one sequence, on two ranks that share its layers. The sides:

  C++                      examples/models/gpt_decoder.h
  C++, one process         the same with two threads
  all_reduce_              Python: plain layers with lockstep.all_reduce_()
  dist.all_reduce          the same with torch.distributed.all_reduce() on Lockstep
  DTensor                  the same with PyTorch's parallelize_module() on Lockstep
  Gloo, DTensor on Gloo    the same with Gloo
  DeepSpeed                the same with DeepSpeed's kernel, if --deepspeed names its sources
  Python, one process      the same with two threads

Prints the median time of a token, the median share of communication, which includes the wait for
the other rank, and the ratio of the time to that of "C++" or "all_reduce_"; above 1, these are
faster. Each rank has one thread, and `lockstep run` binds it to its cores. Last, the cost of one
call in Python.
"""

import json
import os
import pathlib
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import measure  # noqa: E402, from the folder above

EXAMPLES = """examples:
  ./dev bench inference
  ./dev bench inference --quick
  pip download --no-deps --no-binary :all: deepspeed && tar xf deepspeed-*.tar.gz
  ./dev bench inference --widths 768 --deepspeed $PWD/deepspeed-0.19.8
"""

# By width; the second is GPT-2 small.
SHAPES = {256: {"layers": 4, "heads": 8, "vocabulary": 8192},
          768: {"layers": 12, "heads": 12, "vocabulary": 50257}}
# By side, its ranks and options of decode.py; those of C++ have none.
SIDES = {"C++": (2, None),
         "C++, one process": (1, None),
         "all_reduce_": (2, ["--by", "direct"]),
         "dist.all_reduce": (2, ["--by", "dist"]),
         "DTensor": (2, ["--by", "dtensor"]),
         "Gloo": (2, ["--by", "dist", "--backend", "gloo"]),
         "DTensor on Gloo": (2, ["--by", "dtensor", "--backend", "gloo"]),
         "DeepSpeed": (2, ["--by", "deepspeed"]),
         "Python, one process": (1, ["--by", "dist"])}
CORES = 2


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)
    parser.add_argument("--widths", type=int, nargs="+", choices=SHAPES, default=list(SHAPES),
                        metavar="N", help="of the model: all of 256 768")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), metavar="SIDE",
                        help="these alone")
    parser.add_argument("--tokens", type=int, default=128, help="of each run: 128")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs: 5")
    parser.add_argument("--quick", action="store_true", help="width 256, one round, 32 tokens")
    parser.add_argument("--deepspeed", type=pathlib.Path, help="folder of DeepSpeed's sources")
    options = parser.parse_args()
    if options.quick:
        options.widths, options.rounds, options.tokens = [256], 1, 32
    if options.rounds < 1 or options.tokens < 2:
        parser.error("at least one round, and two tokens")
    if options.deepspeed is None:
        options.sides = [side for side in options.sides if side != "DeepSpeed"]
    elif not (options.deepspeed / "csrc/cpu/comm/shm.cpp").exists():
        parser.error(f"{options.deepspeed} has no csrc/cpu/comm/shm.cpp")
    measure.require_built(parser, options, "bench_inference")
    if not list((options.build / "python" / "lockstep").glob("_C*.so")):
        parser.error(f"no package lockstep in {options.build}/python; ./dev bench builds it")
    return options


def printed(command, options, threads):
    """Runs ranks; returns the JSON object that they print."""
    path = os.pathsep.join([str(options.build / "python"), os.environ.get("PYTHONPATH", "")])
    output = measure.run(command, PYTHONPATH=path.rstrip(os.pathsep), OMP_NUM_THREADS=str(threads))
    return json.loads(output[output.index("{"):output.index("}") + 1])


def timed(side, width, options):
    """Returns {"ms": ..., "communication": ...}; DTensor's share is unknown."""
    ranks, words = SIDES[side]
    shape = {"width": width, **SHAPES[width], "tokens": options.tokens}
    flags = [word for name, value in shape.items() for word in (f"--{name}", value)]
    if words is None:
        program = [options.build / "bin" / "bench_inference"]
    else:
        program = [options.python, HERE / "decode.py", *words]
        if side == "DeepSpeed":
            program += ["--deepspeed", options.deepspeed.resolve()]
    launcher = [options.build / "bin" / "lockstep", "run", "-n", ranks]
    return printed([*launcher, *program, *flags], options, threads=CORES // ranks)


def cost_of_call(options):
    """Returns microseconds by function, the medians of several runs."""
    launcher = [options.build / "bin" / "lockstep", "run", "-n", 1]
    runs = [printed([*launcher, options.python, HERE / "call.py"], options, threads=1)
            for _ in range(options.rounds)]
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def base_of(side):
    return "C++" if SIDES[side][1] is None else "all_reduce_"


def measured(width, options, started):
    rounds = []
    for number in range(options.rounds):
        rounds.append({})
        for side in measure.in_turn(number, options.sides):
            measure.progress(started, f"width {width}, round {number + 1} of {options.rounds}: "
                                      f"{side}")
            rounds[-1][side] = timed(side, width, options)
    measure.progress(started, "")
    result = {"width": width, "rounds": rounds, "ratios": {}}
    for side in options.sides:
        base = base_of(side)
        if side != base and base in options.sides:
            result["ratios"][side] = measure.spread([one[side]["ms"] / one[base]["ms"]
                                                     for one in rounds])
    return result


def row(side, result):
    times = [one[side] for one in result["rounds"]]
    shares = [one["communication"] for one in times if "communication" in one]
    share = f"{statistics.median(shares):.0%}" if shares and SIDES[side][0] > 1 else "-"
    text = f"{side:<22}{measure.short(statistics.median(one['ms'] for one in times)):>8}{share:>8}"
    if ratio := result["ratios"].get(side):
        text += (f"{ratio['ratio']:>8.2f} ({ratio['ratio_low']:.2f} - {ratio['ratio_high']:.2f}) "
                 f"to {base_of(side)}")
    return text


def main():
    options = parse_options()
    measure.warn_if_busy()
    started, results = time.monotonic(), []
    for width in options.widths:
        results.append(measured(width, options, started))
        print(f"width {width}\n{'':<22}{'ms':>8}{'share':>8}{'ratio':>8}")
        print("\n".join(row(side, results[-1]) for side in options.sides), flush=True)
        measure.save(options, results)
    results.append({"us a call": cost_of_call(options)})
    print("us a call: " + ", ".join(f"{name} {measure.short(cost)}"
                                    for name, cost in results[-1]["us a call"].items()))
    measure.save(options, results)


if __name__ == "__main__":
    main()
