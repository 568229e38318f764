# SPDX-License-Identifier: Apache-2.0
"""Headers: the umbrella headers include every public one, and namespaces show who may use a
name."""

import re

from tidy.lists import Offence

UMBRELLAS = ("lockstep/lockstep.h", "lockstep/toolkit.h", "lockstep/comm/comm.h")
MOST_PUBLIC = 79  # Of the core.
MOST_INCLUDED = 45  # Directly by lockstep.h.

# Users write the namespaces of these components: lockstep::nn::Linear, as torch::nn::Linear.
NAMED_COMPONENTS = {"nn"}

BLOCK = re.compile(r"^namespace ([\w:]+) \{(.*?)^\}", re.M | re.S)
FORWARD = re.compile(r"\s*((class|struct|enum class) [\w: ]+;)?\s*(//.*)?")


def complaints(tree):
    """Returns public headers that no umbrella includes, and whether there are too many."""
    public = tree.public_headers
    core = [header for header in public if not header.startswith("lockstep/toolkit")]
    if len(core) > MOST_PUBLIC:
        yield f"lockstep/lockstep.h:1: {len(core)} public headers: {MOST_PUBLIC} are the limit"
    included = len(includes_of(tree, UMBRELLAS[0]))
    if included > MOST_INCLUDED:
        yield f"lockstep/lockstep.h:1: {included} includes: {MOST_INCLUDED} are the limit"
    for header in sorted(public - reached(tree)):
        if "/detail/" not in header:
            yield f"{header}:1: a public header, but not included by {' or '.join(UMBRELLAS)}"


def includes_of(tree, header):
    """Returns the includes of a header; none if there is no such file."""
    return next((file.includes for file in tree.files if str(file.path) == header), [])


def reached(tree):
    """Returns the headers that the umbrellas include, directly or through public headers."""
    files = {str(file.path): file for file in tree.files}
    found, open_ones = set(), [name for name in UMBRELLAS if name in files]
    while open_ones:
        name = open_ones.pop()
        if name in found or name not in files:
            continue
        found.add(name)
        if name in tree.public_headers or name in UMBRELLAS:
            open_ones += [include.name for include in files[name].includes]
    return found


def namespace_of(file):
    """Returns the namespace of private names: the component's; in the toolkit, the folder's."""
    return file.path.parts[2] if file.component == "toolkit" else file.component


def misplaced_names(tree):
    """Returns private headers that declare outside of lockstep::COMPONENT, and other headers that
    declare in it. Forward declarations may be anywhere."""
    found = []
    for file in tree.product:
        if file.path.suffix != ".h":
            continue
        name, own = str(file.path), f"lockstep::{namespace_of(file)}"
        spaces = [space for space, body in BLOCK.findall(file.text)
                  if not all(map(FORWARD.fullmatch, body.splitlines()))]
        if name in tree.offered_headers:
            if file.component not in NAMED_COMPONENTS and any(
                    space == file.component or f"{space}::".startswith(f"{own}::")
                    for space in spaces):
                found.append(Offence(name, f"{name}:1", f"other components may include {name}: its "
                                     f"names belong in lockstep, not in {own}"))
        elif any(not f"{space}::".startswith(f"{own}::") for space in spaces):
            found.append(Offence(name, f"{name}:1",
                                 f"{name} is private: its names belong in {own}"))
    return found
