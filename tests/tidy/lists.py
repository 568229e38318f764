# SPDX-License-Identifier: Apache-2.0
"""Lists of known offenders, in files beside this one, that may only become shorter.

A list is a text file with an entry a line; lines that begin with # are its introduction. An entry
may end in a number, which may only go down.
"""

import dataclasses
import pathlib

FOLDER = "tests/tidy"


@dataclasses.dataclass(frozen=True)
class Offence:
    entry: str  # As it is listed.
    where: str  # FILE:LINE.
    reason: str
    count: int = 1  # Beyond 1 it is listed behind the entry.


class ShrinkingList:
    """Compares what was found in the tree with what the list allows."""

    def __init__(self, root, name, counted=False):
        self.name = f"{FOLDER}/{name}"
        self._path = pathlib.Path(root, self.name)
        self._counted = counted
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        self._introduction = [line for line in lines if line.startswith("#")]
        self._entries = {}
        self._lines = {}
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.startswith("#"):
                entry, count = line.rsplit(" ", 1) if counted else (line, 1)
                self._entries[entry] = int(count)
                self._lines[entry] = number

    def complaints(self, offences):
        """Returns offences beyond the list; entries, and counts, that the tree no longer needs."""
        found = counts_of(offences)
        for offence in offences:
            allowed = self._entries.get(offence.entry, 0)
            if offence.count > allowed:
                known = f" (at most {allowed} are allowed: {self.name})" if allowed else ""
                yield f"{offence.where}: {offence.reason}{known}"
        for entry, allowed in self._entries.items():
            place = f"{self.name}:{self._lines[entry]}"
            if entry not in found:
                yield f"{place}: '{entry}' is mended: delete this line"
            elif found[entry] < allowed:
                yield f"{place}: '{entry}' is down to {found[entry]}: write so"

    def rewrite(self, offences, may_grow):
        """Rewrites the list. Returns a message, and whether the change was allowed."""
        found = counts_of(offences)
        before, after = sum(self._entries.values()), sum(found.values())
        grown = [entry for entry, count in found.items() if count > self._entries.get(entry, 0)]
        if grown and not may_grow:
            return f"{self.name}: refused, these would grow: {', '.join(sorted(grown))}", False
        lines = [f"{entry} {count}" if self._counted else entry
                 for entry, count in sorted(found.items())]
        self._path.write_text("\n".join(self._introduction + lines) + "\n")
        return f"{self.name}: {before} -> {after}", True


def counts_of(offences):
    found = {}
    for offence in offences:
        found[offence.entry] = max(found.get(offence.entry, 0), offence.count)
    return found
