#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/rooms.svg: the rooms of lockstep/, their lines of code, and who includes whom.

An arrow leads from a room to one that its sources include. Arrows that follow from two others are
left out. Tests do not count.

  docs/draw_rooms.py           writes the picture, and the figures of docs/internals/architecture.md
  docs/draw_rooms.py --check   fails when the picture is not what it would write
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from tidy import report  # noqa: E402
from tidy.tree import Tree  # noqa: E402

PICTURE = ROOT / "docs" / "images" / "rooms.svg"
FIGURES = ROOT / "docs" / "internals" / "architecture.md"
WIDTH, BOX_WIDTH, BOX_HEIGHT, FLOOR = 860, 130, 54, 110  # Pixels.


def rooms():
    """The lines of each room, and the rooms that it includes."""
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


def floors_of(uses):
    """Each room's floor: one above the highest room that it uses."""
    floors = {}
    def floor(room):
        if room not in floors:
            floors[room] = 1 + max((floor(used) for used in uses[room]), default=-1)
        return floors[room]
    for room in uses:
        floor(room)
    return floors


def reach(uses, room):
    """All rooms that `room` uses, directly or by way of others."""
    found = set()
    for used in uses[room]:
        found |= {used} | reach(uses, used)
    return found


def arrows(uses):
    for room, used in sorted(uses.items()):
        by_way = set().union(*(reach(uses, other) for other in used)) if used else set()
        yield from ((room, other) for other in sorted(used - by_way))


def places(floors):
    """The middle of each box; every other floor is moved, so that arrows pass between its boxes."""
    top = max(floors.values())
    found = {}
    for floor in range(top + 1):
        row = sorted(room for room in floors if floors[room] == floor)
        for i, room in enumerate(row):
            found[room] = (WIDTH * (2 * i + 1) // (2 * len(row)) + floor % 2 * BOX_WIDTH * 4 // 5,
                           40 + BOX_HEIGHT // 2 + FLOOR * (top - floor))
    return found


def picture():
    lines, uses = rooms()
    floors = floors_of(uses)
    at = places(floors)
    height = 80 + BOX_HEIGHT + FLOOR * max(floors.values())
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
           'font-family="sans-serif" font-size="14" text-anchor="middle">',
           "  <title>Rooms of lockstep/ and who includes whom</title>",
           f'  <rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
           '  <marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
           'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#4a6fa5"/></marker>']
    for user, used in arrows(uses):
        (x1, y1), (x2, y2) = at[user], at[used]
        out.append(f'  <path d="M{x1} {y1 + BOX_HEIGHT // 2}L{x2} {y2 - BOX_HEIGHT // 2 - 2}" '
                   'stroke="#4a6fa5" stroke-width="1.5" marker-end="url(#end)"/>')
    for room, (x, y) in sorted(at.items()):
        out += [f'  <rect x="{x - BOX_WIDTH // 2}" y="{y - BOX_HEIGHT // 2}" width="{BOX_WIDTH}" '
                f'height="{BOX_HEIGHT}" rx="6" fill="#dfe8f7" stroke="#4a6fa5"/>',
                f'  <text x="{x}" y="{y - 4}" font-weight="bold">{room}</text>',
                f'  <text x="{x}" y="{y + 15}" font-size="12">'
                f'{round(lines[room], -3):,} lines</text>']
    return "\n".join(out) + "\n</svg>\n"


def with_figures(page):
    """The page with the current table of tests/tidy.py --report in its fence."""
    fence = re.compile(r"```\nroom .*?\n```\n", re.S)
    return fence.sub(lambda _: f"```\n{report.table(Tree(ROOT))}\n```\n", page)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it is stale")
    if not parser.parse_args().check:
        PICTURE.write_text(picture())
        FIGURES.write_text(with_figures(FIGURES.read_text()))
    elif PICTURE.read_text() != picture():
        print(f"{PICTURE.relative_to(ROOT)} is stale: ./dev docs")
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
