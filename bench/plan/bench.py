#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the steps of a GPT that `lockstep plan` predicts with real ones: examples/gpt.cpp trains
in several layouts, the plan's first choice among them. A step's time is the difference of a long
and a short run, so starts and ends do not count. The result is the time of the plan's first choice,
divided by that of the fastest layout measured: 1 if the plan is right.
"""

import json
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import measure  # noqa: E402, from the folder above

EXAMPLES = """examples:
  ./dev bench plan
  ./dev bench plan --ranks 4 --widths 256 --layouts 8
"""

# By width: bytes of a sequence; how many more steps the long run has than the short one.
SHAPES = {128: (64, 40), 256: (128, 16), 512: (128, 8)}
SHORT = 4  # Steps of the short run.


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)
    parser.add_argument("--widths", type=int, nargs="+", choices=SHAPES, default=list(SHAPES),
                        metavar="N", help="of the model: all of 128 256 512")
    parser.add_argument("--layers", type=int, default=6, help="6")
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step: 8")
    parser.add_argument("--ranks", type=int, default=2, help="2")
    parser.add_argument("--layouts", type=int, default=6, help="how many are measured: 6")
    parser.add_argument("--rounds", type=int, default=5, help="how often each runs: 5")
    options = parser.parse_args()
    if min(options.layers, options.batch, options.ranks, options.layouts, options.rounds) < 1:
        parser.error("all numbers are positive")
    measure.require_built(parser, options, "gpt")
    return options


def shape_of(width, options):
    return ["--width", width, "--layers", options.layers, "--heads", 8, "--batch", options.batch,
            "--length", SHAPES[width][0]]


def planned(width, options):
    """All layouts that fit, as `lockstep plan` writes them, best first."""
    programs = options.build / "bin"
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "plan.json"
        measure.run([programs / "lockstep", "plan", "-n", options.ranks, "--json", file,
                     programs / "gpt", *shape_of(width, options)])
        layouts = json.loads(file.read_text())["layouts"]
    return [layout for layout in layouts if layout.get("fits")]


def chosen(layouts, count):
    """The first of the plan, the best of each mesh, then others; `count` in all."""
    meshes = {}
    for layout in layouts:
        meshes.setdefault(tuple(layout[key] for key in ("dp", "tp", "pp", "cp", "fsdp")), layout)
    best = list(meshes.values())
    return (best + [layout for layout in layouts if layout not in best])[:count]


def name_of(layout):
    text = " ".join(f"{key} {layout[key]}" for key in ("pp", "dp", "cp", "tp") if layout[key] > 1)
    text += " fsdp" if layout["fsdp"] else ""
    if layout["pp"] > 1:
        text += f" {layout['schedule']} x{layout['microbatches']}"
    return text or "one rank"


def milliseconds(layout, width, options):
    arguments = ["--sample", 0, *shape_of(width, options)]
    for key in ("dp", "tp", "pp", "cp"):
        arguments += [f"--{key}", layout[key]]
    if layout["fsdp"]:
        arguments += ["--fsdp"]
    if layout["pp"] > 1:
        arguments += ["--schedule", layout["schedule"], "--microbatches", layout["microbatches"],
                      "--cut", ",".join(map(str, layout["cut"]))]
    more = SHAPES[width][1]
    times = []
    for steps in (SHORT, SHORT + more):
        begin = time.monotonic()
        measure.run(measure.lockstep_run(options.build, options.ranks, "gpt", *arguments,
                                         "--steps", steps))
        times.append(time.monotonic() - begin)
    return (times[1] - times[0]) / more * 1e3


def measured(width, options, started):
    measure.progress(started, f"width {width}: plan")
    layouts = chosen(planned(width, options), options.layouts)
    for layout in layouts:
        layout["name"], layout["ms"] = name_of(layout), []
    for number in range(options.rounds):
        for layout in measure.in_turn(number, layouts):
            measure.progress(started, f"width {width}, round {number + 1}: {layout['name']}")
            layout["ms"].append(milliseconds(layout, width, options))
    measure.progress(started, "")
    ratios = [layouts[0]["ms"][i] / min(layout["ms"][i] for layout in layouts)
              for i in range(options.rounds)]
    return {"width": width, "layouts": layouts, "first choice": measure.spread(ratios)}


def print_result(result):
    print(f"\nwidth {result['width']}\n{'':>28}{'predicted':>12}{'measured':>12}")
    for layout in result["layouts"]:
        print(f"{layout['name']:>28}{layout['step_seconds'] * 1e3:>12.1f}"
              f"{statistics.median(layout['ms']):>12.1f}")
    ratio = result["first choice"]
    print(f"first choice, to the fastest: {ratio['ratio']:.2f} ({ratio['ratio_low']:.2f} - "
          f"{ratio['ratio_high']:.2f})", flush=True)


def main():
    options = parse_options()
    measure.warn_if_busy()
    started, results = time.monotonic(), []
    print(f"ms a step of a GPT of {options.layers} layers, {options.ranks} ranks: medians of "
          f"{options.rounds} rounds")
    for width in options.widths:
        results.append(measured(width, options, started))
        print_result(results[-1])
        measure.save(options, results)


if __name__ == "__main__":
    main()
