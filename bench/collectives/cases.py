# SPDX-License-Identifier: Apache-2.0
"""What the programs beside this are told to measure, and what they print."""

import collections
import re

Case = collections.namedtuple("Case", "operation ranks bytes memory")

KB, MB = 1 << 10, 1 << 20


def case_text(case, batches, batch):
    """How a case is named to a program, with batches to warm up beside those that count."""
    warmup = 1 + batches // 10
    return f"{case.operation}:{case.memory}:{case.bytes}:{warmup}:{batches}:{batch}"


def figures_of(output, ranks):
    """The microseconds of each case."""
    found = re.findall(r"figure (\w+) (\w+) (\d+) ([\d.]+)", output)
    return {Case(operation, ranks, int(size), memory): float(microseconds)
            for operation, memory, size, microseconds in found}
