#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sources whose results have Python's bits are compiled without contraction of products and sums.
The results cannot show this on a processor without an instruction for both.

contraction_test.py COMPILE_COMMANDS
"""

import json
import pathlib
import sys

OPTION = "-ffp-contract=off"
SOURCES = {f"lockstep/toolkit/schedules/{name}_schedules.cpp" for name in ("cyclic", "decay")}


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    commands = json.loads(pathlib.Path(sys.argv[1]).read_text())
    without = {source for source in SOURCES if not any(
        pathlib.Path(each["file"]) == root / source and OPTION in each["command"].split()
        for each in commands)}
    assert not without, f"compiled without {OPTION}: {sorted(without)}"
    print(f"{len(SOURCES)} sources are compiled with {OPTION}")


if __name__ == "__main__":
    main()
