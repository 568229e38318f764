# SPDX-License-Identifier: Apache-2.0
"""Draws a selection of the ratios of docs/benchmarks.md, with their ranges, as SVG.

Ratios are Lockstep's speed to a peer's, on a logarithmic axis. The selection includes a case in
which Lockstep loses.
"""

import dataclasses
import math
import pathlib
import re

BENCHMARKS = pathlib.Path(__file__).resolve().parents[1] / "benchmarks.md"
WIDTH, LEFT, RIGHT, ROW, TOP = 860, 392, 70, 30, 34  # Pixels.
TICKS = (0.5, 1, 2, 5, 10, 20, 50)
RATIO = re.compile(r"([\d.]+) \(([\d.]+) - ([\d.]+)\)")


@dataclasses.dataclass(frozen=True)
class Bar:
    label: str
    peer: str
    section: str  # A heading of docs/benchmarks.md.
    row: str  # The beginning of a row's first cell.
    column: int  # A cell of this row, from 1.
    command: str  # Which measured it; a part of the section's text.
    index: int = 0  # Among the ratios in this cell.


BARS = (
    Bar("all_reduce of 64 KB, registered memory", "Open MPI", "Collectives on one host",
        "all_reduce, registered memory", 2, "./dev bench collectives"),
    Bar("all_reduce of 64 KB, any memory", "Open MPI", "Collectives on one host",
        "all_reduce, any memory", 2, "./dev bench collectives"),
    Bar("broadcast of 64 KB, any memory", "Open MPI", "Collectives on one host",
        "ratio, broadcast, 2 ranks, any", 2, "./dev bench collectives"),
    Bar("data parallel CNN, batch 4", "PyTorch DDP", "Training steps",
        "`./dev bench ddp`, four rounds", 1, "./dev bench ddp"),
    Bar("data parallel CNN, batch 128", "PyTorch DDP", "Training steps",
        "`./dev bench ddp`, four rounds", 3, "./dev bench ddp"),
    Bar("tensor parallel GPT, width 256", "DTensor", "Model parallel",
        "tensor parallel", 2, "./dev bench model-parallel"),
    Bar("fully sharded GPT, width 256", "fully_shard()", "Model parallel",
        "`fully-sharded`;", 2, "./dev bench model-parallel"),
    Bar("pipeline of two stages, GPT, width 256", "PyTorch", "Model parallel",
        "`pipeline`,", 2, "./dev bench model-parallel"),
    Bar("JPEGs, the recipe of ImageNet", "torchvision", "Data",
        "JPEGs of", 3, "./dev bench data"),
    Bar("data parallel CNN in Python, batch 4", "Gloo", "Python programs",
        "DDP of the CNN", 1, "./dev bench python"),
)


def ratio_of(bar, text):
    """The median, the lowest and the highest ratio of a bar."""
    section = re.search(rf"^## {re.escape(bar.section)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if not section or bar.command not in section[1]:
        raise LookupError(f"docs/benchmarks.md: no section '{bar.section}' with {bar.command}")
    for line in section[1].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].startswith(bar.row):
            found = RATIO.findall(cells[bar.column])
            if bar.index < len(found):
                return tuple(map(float, found[bar.index]))
    raise LookupError(f"docs/benchmarks.md: no ratio in row '{bar.row}', column {bar.column}")


def position(ratio):
    """The x coordinate of a ratio."""
    low, high = math.log(TICKS[0]), math.log(TICKS[-1])
    return LEFT + (WIDTH - LEFT - RIGHT) * (math.log(ratio) - low) / (high - low)


def picture():
    """The plot as SVG, in the colour of the text around it."""
    text = BENCHMARKS.read_text()
    bottom = TOP + ROW * len(BARS)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 34}" '
           'role="img" font-family="sans-serif" font-size="14" fill="currentColor">',
           "<title>Speed of Lockstep, relative to peers</title>"]
    for tick in TICKS:
        x, weight = position(tick), 2 if tick == 1 else 1
        out += [f'<path d="M{x:.1f} {TOP - 8}V{bottom}" stroke="currentColor" '
                f'stroke-opacity="{0.25 * weight}" stroke-width="{weight}"/>',
                f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}x</text>']
    out.append(f'<text x="{position(1) + 6:.1f}" y="{TOP - 14}" font-size="13">'
               "Lockstep is faster →</text>")
    for i, bar in enumerate(BARS):
        median, low, high = ratio_of(bar, text)
        y = TOP + ROW * i + ROW // 2
        colour = "#2f9e6e" if median >= 1 else "#d9822b"
        out += [f'<text x="{LEFT - 14}" y="{y + 5}" text-anchor="end">{bar.label} '
                f'<tspan fill-opacity="0.65">to {bar.peer}</tspan></text>',
                f'<path d="M{position(1):.1f} {y}H{position(median):.1f}" stroke="{colour}" '
                'stroke-width="10" stroke-opacity="0.45"/>',
                f'<path d="M{position(low):.1f} {y}H{position(high):.1f}" stroke="{colour}" '
                'stroke-width="2"/>',
                f'<circle cx="{position(median):.1f}" cy="{y}" r="5" fill="{colour}"/>',
                f'<text x="{WIDTH - 4}" y="{y + 5}" text-anchor="end" font-weight="bold">'
                f'{median:g}x</text>']
    return "\n".join(out) + "\n</svg>\n"
