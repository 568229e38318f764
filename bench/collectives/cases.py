# SPDX-License-Identifier: Apache-2.0
"""Cases for the programs in this folder, and the figures that they print."""

import collections
import re

Case = collections.namedtuple("Case", "operation ranks bytes memory")

KB, MB = 1 << 10, 1 << 20


def case_text(case, batches, batch):
    """Returns the name of a case for a program, with warm-up batches in addition to the counted
    ones."""
    warmup = 1 + batches // 10
    return f"{case.operation}:{case.memory}:{case.bytes}:{warmup}:{batches}:{batch}"


def figures_of(output, ranks):
    """Returns the microseconds of each case."""
    found = re.findall(r"figure (\w+) (\w+) (\d+) ([\d.]+)", output)
    return {Case(operation, ranks, int(size), memory): float(microseconds)
            for operation, memory, size, microseconds in found}
