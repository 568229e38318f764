# SPDX-License-Identifier: Apache-2.0
"""Draws a selection of the ratios of docs/benchmarks.md, for the front page and the README.

The selection includes a case in which Lockstep loses.

  docs/site/speed.py           writes docs/images/speed.svg, which README.md shows
"""

import dataclasses
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench"))
import ratio_plot  # noqa: E402

BENCHMARKS = ROOT / "docs/benchmarks.md"
IMAGE = ROOT / "docs/images/speed.svg"
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
        "all_reduce, 2 ranks, registered", 2, "./dev bench collectives"),
    Bar("all_reduce of 64 KB, any memory", "Open MPI", "Collectives on one host",
        "all_reduce, 2 ranks, any", 2, "./dev bench collectives"),
    Bar("broadcast of 64 KB, any memory", "Open MPI", "Collectives on one host",
        "broadcast, 2 ranks, any", 2, "./dev bench collectives"),
    Bar("data parallel CNN, batch 4", "PyTorch DDP", "Training steps", "to PyTorch", 1,
        "./dev bench ddp"),
    Bar("data parallel CNN, batch 4", "2 threads", "Training steps",
        "to all threads", 1, "./dev bench ddp"),
    Bar("data parallel CNN, batch 128", "PyTorch DDP", "Training steps", "to PyTorch", 3,
        "./dev bench ddp"),
    Bar("tensor parallel GPT, width 256", "DTensor", "Model parallel", "tensor;", 2,
        "./dev bench model-parallel"),
    Bar("fully sharded GPT, width 256", "fully_shard()", "Model parallel", "fully-sharded;", 2,
        "./dev bench model-parallel"),
    Bar("pipeline of two stages, GPT, width 256", "PyTorch", "Model parallel", "pipeline;", 2,
        "./dev bench model-parallel"),
    Bar("JPEGs, the recipe of ImageNet", "torchvision", "Data",
        "us of CPU time an image: ImageFolder, torchvision", 3, "./dev bench data"),
    Bar("data parallel CNN in Python, batch 4", "Gloo", "Python programs", "DDP, batch 4", 1,
        "./dev bench python"),
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


def picture():
    """Returns the plot as SVG."""
    text = BENCHMARKS.read_text()
    return ratio_plot.picture("Speed of Lockstep, relative to peers",
                              [ratio_plot.Ratio(bar.label, bar.peer, *ratio_of(bar, text))
                               for bar in BARS])


if __name__ == "__main__":
    IMAGE.write_text(picture())
