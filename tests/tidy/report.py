# SPDX-License-Identifier: Apache-2.0
"""A table with measures of each component; tests do not count."""

import collections
import statistics

from tidy.dependencies import private_includes
from tidy.sizes import classes_of

HEADER = ("component", "lines", "files", "median", "layers", "private", "largest class", "members")


def table(tree):
    """One row per component, followed by indented rows for its sub-components; aligned."""
    by_path = {str(file.path): file for file in tree.product}
    includers = [by_path[path] for offence in private_includes(tree)
                 if (path := offence.where.split(":")[0]) in by_path]
    private = collections.Counter(file.component for file in includers)
    private.update(file.subcomponent for file in includers if file.subcomponent != file.component)
    rows = []
    for component in sorted({file.component for file in tree.product}):
        files = [file for file in tree.product if file.component == component]
        rows.append(row(component, files, private[component]))
        subcomponents = sorted({file.subcomponent for file in files} - {component})
        for subcomponent in subcomponents:
            inside = [file for file in files if file.subcomponent == subcomponent]
            name = "  " + subcomponent.removeprefix(f"{component}/")
            rows.append(row(name, inside, private[subcomponent]))
    return aligned([HEADER, *rows, row("all", tree.product, len(includers))])


def row(name, files, private):
    largest = max((one for file in files for one in classes_of(file)),
                  key=lambda one: one.members, default=None)
    return (name, sum(len(file.lines) for file in files), len(files),
            round(statistics.median(len(file.lines) for file in files)), layers_of(files), private,
            largest.name if largest else "-", largest.members if largest else 0)


def layers_of(files):
    """Returns the number of files in the longest chain of includes among these."""
    by_name = {str(file.path): file for file in files}
    layers = {}

    def layer(name):
        if name not in layers:
            layers[name] = 1  # Holds during the search, in case headers include each other.
            layers[name] = 1 + max((layer(include.name) for include in by_name[name].includes
                                    if include.name in by_name and include.name != name),
                                   default=0)
        return layers[name]

    return max(map(layer, by_name))


def aligned(rows):
    """Texts to the left, numbers and their titles to the right."""
    widths = [max(len(shown(cell)) for cell in column) for column in zip(*rows)]
    is_text = [isinstance(cell, str) for cell in rows[-1]]
    return "\n".join(
        "  ".join(f"{shown(cell):{'<' if text else '>'}{width}}"
                  for cell, width, text in zip(one, widths, is_text)).rstrip()
        for one in rows)


def shown(cell):
    return cell if isinstance(cell, str) else f"{cell:,}"
