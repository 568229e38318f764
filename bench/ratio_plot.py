# SPDX-License-Identifier: Apache-2.0
"""Draws ratios with their ranges as SVG: a row for each, on a logarithmic axis."""

import dataclasses
import html
import math

WIDTH, RIGHT, ROW, TOP = 860, 70, 30, 34  # Pixels.
LABELS = 392  # Most pixels for labels; longer ones are cut.
LETTER = 7.4  # Average width of a letter.
FASTER, SLOWER = "#2f9e6e", "#d9822b"
TEXT = "#808080"  # Readable on white and on black.

# Fields of a case that do not identify it.
COUNTS = {"warmup", "steps", "rounds", "index"}
GROUPS = {"ratios", "sides", "comparisons", "results", "cases"}


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Lockstep's speed relative to a peer's: the median of all rounds, the lowest, the highest."""
    label: str
    peer: str
    median: float
    low: float
    high: float


def ratios_in(figures):
    """Returns the Ratios of a benchmark's --json: each dictionary that measure.spread() made.

    The label consists of the names on the way to it. Names that all ratios share are omitted.
    """
    found = list(ratios_below(figures, ()))
    shared = set.intersection(*(set(path) for path, _ in found)) if found else set()
    return [Ratio(", ".join(name for name in path if name not in shared) or path[-1], "",
                  spread["ratio"], spread["ratio_low"], spread["ratio_high"])
            for path, spread in found]


def ratios_below(figures, path):
    """Yields the path and the dictionary of each ratio."""
    if isinstance(figures, list):
        for entry in figures:
            yield from ratios_below(entry, path)
    elif isinstance(figures, dict):
        path = (*path, *names_of(figures))
        if "ratio" in figures:
            yield path, figures
        for name, entry in figures.items():
            if name != "rounds":
                yield from ratios_below(entry, path if name in GROUPS else (*path, str(name)))


def names_of(case):
    """Yields what identifies a case: its texts and numbers before its first figure."""
    for name, value in case.items():
        if isinstance(value, str):
            yield value
        elif isinstance(value, int):
            if name not in COUNTS and value:
                yield name if value is True else f"{name} {value}"
        else:
            return


def ticks_for(low, high):
    """Returns the series 1, 2, 5, 10, ... from at most `low` and 1 to at least `high` and 1."""
    first = math.floor(math.log10(min(low, 1)))
    last = math.ceil(math.log10(max(high, 1)))
    series = [digit * 10.0 ** power for power in range(first, last + 1) for digit in (1, 2, 5)]
    below = max([tick for tick in series if tick <= min(low, 0.9)], default=series[0])
    above = min([tick for tick in series if tick >= max(high, 1.1)], default=series[-1])
    return [tick for tick in series if below <= tick <= above]


def picture(title, ratios):
    """Returns the plot of some Ratios as SVG."""
    ticks = ticks_for(min(ratio.low for ratio in ratios), max(ratio.high for ratio in ratios))
    texts = [shortened(ratio) for ratio in ratios]
    left = min(LABELS, 20 + LETTER * max(len(f"{label} to {peer}") for label, peer in texts))
    bottom = TOP + ROW * len(ratios)

    def position(ratio):
        share = math.log(ratio / ticks[0]) / math.log(ticks[-1] / ticks[0])
        return left + (WIDTH - left - RIGHT) * share

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 34}" '
           f'role="img" font-family="sans-serif" font-size="14" fill="{TEXT}">',
           f"<title>{html.escape(title)}</title>"]
    for tick in ticks:
        x, weight = position(tick), 2 if tick == 1 else 1
        out += [f'<path d="M{x:.1f} {TOP - 8}V{bottom}" stroke="{TEXT}" '
                f'stroke-opacity="{0.25 * weight}" stroke-width="{weight}"/>',
                f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}x</text>']
    out.append(f'<text x="{position(1) + 6:.1f}" y="{TOP - 14}" font-size="13">'
               "Lockstep is faster →</text>")
    for i, (ratio, (label, peer)) in enumerate(zip(ratios, texts)):
        y = TOP + ROW * i + ROW // 2
        bar = FASTER if ratio.median >= 1 else SLOWER
        to_peer = f' <tspan fill-opacity="0.65">to {html.escape(peer)}</tspan>' if peer else ""
        out += [f'<text x="{left - 14:.0f}" y="{y + 5}" text-anchor="end">{html.escape(label)}'
                f"{to_peer}</text>",
                f'<path d="M{position(1):.1f} {y}H{position(ratio.median):.1f}" stroke="{bar}" '
                'stroke-width="10" stroke-opacity="0.45"/>',
                f'<path d="M{position(ratio.low):.1f} {y}H{position(ratio.high):.1f}" '
                f'stroke="{bar}" stroke-width="2"/>',
                f'<circle cx="{position(ratio.median):.1f}" cy="{y}" r="5" fill="{bar}"/>',
                f'<text x="{WIDTH - 4}" y="{y + 5}" text-anchor="end" font-weight="bold">'
                f"{ratio.median:.3g}x</text>"]
    return "\n".join(out) + "\n</svg>\n"


def shortened(ratio):
    """Returns label and peer, the label cut to the width that labels have."""
    most = int((LABELS - 20) / LETTER) - len(f" to {ratio.peer}" if ratio.peer else "")
    label = ratio.label if len(ratio.label) <= most else ratio.label[:most - 1] + "…"
    return label, ratio.peer
