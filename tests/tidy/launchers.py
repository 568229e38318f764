# SPDX-License-Identifier: Apache-2.0
"""The guide's table of launchers has the sets of variables that are read, in their order."""

import re

SETS = "lockstep/job/launcher_variables.cpp"
GUIDE = "docs/guide/clusters.md"

# Name, rank, number of ranks.
IN_SETS = re.compile(r'\{\s*"(\w+)",\s*"[^"]*",\s*(?:true|false),\s*"(\w+)",\s*"(\w+)"')
IN_GUIDE = re.compile(r"^\| (\w+) \| [^|]* \| ([A-Z0-9_]+), ([A-Z0-9_]+) \|", re.M)


def complaints(tree):
    sets, guide = tree.root / SETS, tree.root / GUIDE
    if not sets.exists() or not guide.exists():
        return
    read = IN_SETS.findall(sets.read_text())
    told = IN_GUIDE.findall(guide.read_text())
    if read != told:
        yield f"{GUIDE}:1: the table of launchers has {told}, but {SETS} reads {read}"
