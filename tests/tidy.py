#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the project's rules: dependencies between components, headers, sizes, lines, banned
constructs, prose, and one version everywhere.

Complaints are printed as FILE:LINE: REASON and fail the test; notes are only printed. Known
offenders are listed in tests/tidy/*.txt, which may only become shorter.
"""

import argparse
import pathlib
import sys

from tidy import (bans, dependencies, headers, history, launchers, prose, report, sizes,
                  versions)
from tidy.lists import ShrinkingList
from tidy.tree import Tree

EXAMPLES = """
Examples:
  tests/tidy.py                    checks the tree; ./dev lint and ctest -R tidy do it, too
  tests/tidy.py --report           lines, files, classes, layers, private includes by component
  tests/tidy.py --prose            counts hard sentences and words
  tests/tidy.py --prose=long       prints each place; opener, odd, verb, term, long or all
  tests/tidy.py --diff main        the places in lines that were added since the commit `main`
  tests/tidy.py --history main     checks subjects and bodies of the commits since `main`
  tests/tidy.py --relist           shortens the lists after a mend; none of them may grow
  tests/tidy.py --relist --moved   the same after moves of files, which may lengthen them

Exit code: 0 when all rules hold, 1 when one does not, 2 for a wrong argument.
"""


def lists(root, tree):
    """Returns each list of known offenders, with the offenders in the tree."""
    return [
        (ShrinkingList(root, "cycles.txt"), dependencies.arrows_in_circles(tree)),
        (ShrinkingList(root, "private_includes.txt"), dependencies.private_includes(tree)),
        (ShrinkingList(root, "namespaces.txt"), headers.misplaced_names(tree)),
        (ShrinkingList(root, "large_classes.txt", counted=True), sizes.large_classes(tree)),
        (ShrinkingList(root, "long_functions.txt", counted=True), sizes.long_functions(tree)),
        (ShrinkingList(root, "prose.txt", counted=True), prose.offences(tree)),
    ]


def check(root, tree):
    found = [*dependencies.complaints(tree), *bans.complaints(tree), *headers.complaints(tree),
             *launchers.complaints(tree), *versions.complaints(tree)]
    for known, offences in lists(root, tree):
        found += known.complaints(offences)
    print("\n".join([*bans.notes(tree), *(found or ["tidy"])]))
    return bool(found)


def relist(root, tree, moved):
    done = [known.rewrite(offences, may_grow=moved) for known, offences in lists(root, tree)]
    print("\n".join(text for text, _ in done))
    return not all(allowed for _, allowed in done)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="print the measures by component")
    parser.add_argument("--prose", nargs="?", const="", choices=["", *prose.RULES, "long", "all"],
                        metavar="RULE", help="count hard words and sentences, or print places")
    parser.add_argument("--diff", metavar="COMMIT", help="print those in lines added since then")
    parser.add_argument("--history", metavar="COMMIT", help="check the commits since then")
    parser.add_argument("--relist", action="store_true", help="rewrite the lists of offenders")
    parser.add_argument("--moved", action="store_true",
                        help="with --relist: lists may grow, as this change only moves files")
    parser.add_argument("--root", type=pathlib.Path, help="the tree; default: this one",
                        default=pathlib.Path(__file__).resolve().parent.parent)
    options = parser.parse_args(arguments)
    if options.moved and not options.relist:
        parser.error("--moved goes with --relist")
    if options.history:
        found = list(history.complaints(options.root, options.history))
        print("\n".join(found or ["tidy"]))
        return bool(found)
    tree = Tree(options.root)
    if options.report:
        print(report.table(tree))
        return False
    if options.prose is not None:
        print(prose.listing(tree, options.prose) if options.prose else prose.table(tree))
        return False
    if options.diff:
        print(prose.listing(tree, "all", prose.added_lines(options.root, options.diff)))
        return False
    if options.relist:
        return relist(options.root, tree, options.moved)
    return check(options.root, tree)


if __name__ == "__main__":
    sys.exit(main())
