# SPDX-License-Identifier: Apache-2.0
"""Dependencies of components: the table, circles between sub-components, and private headers."""

import collections

from tidy.lists import Offence
from tidy.tree import sub_room_of

# Each component (folder) of lockstep/ and the components that it may include, with those that these
# may include. A component in the table need not exist yet.
ROOMS = {
    "base":       "",
    "job":        "base",
    "comm":       "job",
    "launch":     "job",
    "tensor":     "comm",
    "c10d":       "tensor",
    "nn":         "tensor",
    "optim":      "tensor",
    "data":       "tensor",
    "checkpoint": "tensor",
    "compiled":   "checkpoint",
    "parallel":   "nn optim",
    "observe":    "parallel checkpoint",
    "prune":      "parallel checkpoint",
    "train":      "observe data",
}

# Sub-components and the sub-components of the same component that they may include, besides the
# component's root. Sub-components that are not listed may include all of their component if no
# circle arises. So may tests.
SUB_ROOMS = {
    "data/arrays":              "",
    "data/images":              "",
    "data/shards":              "images",
    "data/tokens":              "arrays",
    "optim/schedules":          "",
    "parallel/average":         "replicate",
    "parallel/detail":          "",
    "parallel/gradients":       "",
    "parallel/deterministic":          "gradients",
    "parallel/shard":           "gradients",
    "parallel/replicate":       "detail deterministic gradients shard",
    "parallel/local_steps":     "gradients replicate",
    "parallel/shared_parameters":        "gradients replicate",
    "parallel/fully_sharded":   "gradients shared_parameters replicate",
    "parallel/tensor_parallel": "gradients",
    "parallel/pipeline":        "detail fully_sharded gradients replicate tensor_parallel",
    "parallel/plan":            "detail gradients pipeline tensor_parallel",
}

WITHOUT_TORCH = {"base", "job", "comm", "launch"}


def reach(room):
    """Returns all components that the table lets `room` include."""
    found = set()
    for used in ROOMS[room].split():
        found |= {used} | reach(used)
    return found


def complaints(tree):
    """Returns the includes that break the two tables."""
    for file in tree.library:
        if file.room not in ROOMS:
            yield f"{file.path}:1: room '{file.room}' is not in ROOMS of tests/tidy/arrows.py"
            continue
        for include in file.includes:
            if reason := refusal(file, sub_room_of(include.name)):
                yield f"{file.path}:{include.line}: {reason}"


def refusal(file, used):
    """Returns why a file may not include a header of the folder `used`; None if it may."""
    room = used.split("/")[0]
    if not room:
        return f"{file.room} may not include an umbrella of all rooms"
    if room != file.room:
        return None if room in reach(file.room) else f"{file.room} may not include {room}"
    if file.is_test or file.sub_room not in SUB_ROOMS or used in {file.sub_room, room}:
        return None
    allowed = {f"{room}/{name}" for name in SUB_ROOMS[file.sub_room].split()}
    return None if used in allowed else f"{file.sub_room} may not include {used}"


# --- Circles between sub-rooms -------------------------------------------------------------------


def sub_room_arrows(tree):
    """Returns, for each component, {sub-component: {included sub-component: FILE:LINE of the
    first include}}."""
    found = collections.defaultdict(dict)
    for file in tree.product:
        for include in file.includes:
            used = sub_room_of(include.name)
            if used != file.sub_room and used.split("/")[0] == file.room:
                found[file.sub_room].setdefault(used, f"{file.path}:{include.line}")
    return found


def way(arrows, start, end):
    """Returns the shortest chain of dependencies from `start` to `end`; None if there is none."""
    chains, seen = collections.deque([[start]]), {start}
    while chains:
        chain = chains.popleft()
        if chain[-1] == end:
            return chain
        for used in sorted(arrows.get(chain[-1], ())):
            if used not in seen:
                seen.add(used)
                chains.append(chain + [used])
    return None


def arrows_in_circles(tree):
    """Returns each dependency between sub-components from whose end a path leads back."""
    arrows = sub_room_arrows(tree)
    found = []
    for user, used_rooms in sorted(arrows.items()):
        for used, where in sorted(used_rooms.items()):
            if back := way(arrows, used, user):
                chain = " -> ".join([user, *back])
                found.append(Offence(f"{user} -> {used}", where, f"a circle of rooms: {chain}"))
    return found


# --- Private headers -----------------------------------------------------------------------------


def private_includes(tree):
    """Returns includes of headers that another component does not offer. Tests may include any
    header."""
    found = []
    for file in tree.files:
        if not file.is_cpp or file.is_test:
            continue
        for include in file.includes:
            room = sub_room_of(include.name).split("/")[0]
            if room and room != file.room and include.name not in tree.offered_headers:
                found.append(Offence(
                    f"{file.path}: {include.name}", f"{file.path}:{include.line}",
                    f"{include.name} is private to {room}: "
                    "it is neither in HEADERS nor in OFFERS there"))
    return found
