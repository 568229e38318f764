# SPDX-License-Identifier: Apache-2.0
"""Draws the components of lockstep/, their lines of code, and the dependencies among them.

An arrow leads from a component to one that its sources include. Dependencies that follow from two
others are left out. Tests do not count.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from tidy import report  # noqa: E402
from tidy.tree import Tree  # noqa: E402

WIDTH, BOX_WIDTH, BOX_HEIGHT, LAYER = 860, 130, 54, 110  # Pixels.


def components():
    """The lines of each component, and the components that it includes."""
    lines, uses = {}, {}
    for path in sorted((ROOT / "lockstep").rglob("*")):
        parts = path.relative_to(ROOT / "lockstep").parts
        if path.suffix not in {".h", ".cpp"} or len(parts) < 2 or path.stem.endswith("_test"):
            continue
        text = path.read_text()
        lines[parts[0]] = lines.get(parts[0], 0) + text.count("\n")
        used = set(re.findall(r'#include "lockstep/(\w+)/', text)) - {parts[0]}
        uses.setdefault(parts[0], set()).update(used)
    return lines, uses


def layers_of(uses):
    """Each component's layer: one above the highest component that it uses."""
    layers = {}

    def layer(component):
        if component not in layers:
            layers[component] = 1 + max((layer(used) for used in uses[component]), default=-1)
        return layers[component]

    for component in uses:
        layer(component)
    return layers


def reach(uses, component):
    """All components that `component` uses, directly or indirectly."""
    found = set()
    for used in uses[component]:
        found |= {used} | reach(uses, used)
    return found


def arrows(uses):
    for component, used in sorted(uses.items()):
        implied = set().union(*(reach(uses, other) for other in used)) if used else set()
        yield from ((component, other) for other in sorted(used - implied))


def places(layers):
    """The middle of each box. Every other layer is shifted, so that arrows pass between boxes."""
    top = max(layers.values())
    found = {}
    for layer in range(top + 1):
        row = sorted(component for component in layers if layers[component] == layer)
        for i, component in enumerate(row):
            found[component] = (
                WIDTH * (2 * i + 1) // (2 * len(row)) + layer % 2 * BOX_WIDTH * 4 // 5,
                40 + BOX_HEIGHT // 2 + LAYER * (top - layer))
    return found


def picture():
    """The drawing as SVG, in the colour of the text around it."""
    lines, uses = components()
    layers = layers_of(uses)
    at = places(layers)
    height = 80 + BOX_HEIGHT + LAYER * max(layers.values())
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
           'font-family="sans-serif" font-size="14" text-anchor="middle" fill="currentColor">',
           "<title>Components of lockstep/ and their dependencies</title>",
           '<marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
           'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#5b86c4"/></marker>']
    for user, used in arrows(uses):
        (x1, y1), (x2, y2) = at[user], at[used]
        out.append(f'<path d="M{x1} {y1 + BOX_HEIGHT // 2}L{x2} {y2 - BOX_HEIGHT // 2 - 2}" '
                   'stroke="#5b86c4" stroke-width="1.5" marker-end="url(#end)"/>')
    for component, (x, y) in sorted(at.items()):
        out += [f'<rect x="{x - BOX_WIDTH // 2}" y="{y - BOX_HEIGHT // 2}" width="{BOX_WIDTH}" '
                f'height="{BOX_HEIGHT}" rx="6" fill="#5b86c4" fill-opacity="0.2" '
                'stroke="#5b86c4"/>',
                f'<text x="{x}" y="{y - 4}" font-weight="bold">{component}</text>',
                f'<text x="{x}" y="{y + 15}" font-size="12">'
                f'{round(lines[component], -3):,} lines</text>']
    return "\n".join(out) + "\n</svg>\n"


def figures():
    """The table of tests/tidy.py --report."""
    return report.table(Tree(ROOT))
