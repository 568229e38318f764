# SPDX-License-Identifier: Apache-2.0
"""Dependencies of components: the table, cycles between subcomponents, and private headers."""

import collections

from tidy.lists import Offence
from tidy.tree import subcomponent_of

# Each component (folder) of lockstep/ and the components that it may include, with those that these
# may include. A component in the table need not exist yet.
COMPONENTS = {
    "base":          "",
    "job":           "base",
    "comm":          "job",
    "launch":        "job",
    "tensor":        "comm",
    "torch_backend": "tensor",
    "nn":            "tensor",
    "optim":         "tensor",
    "data":          "tensor",
    "checkpoint":    "tensor",
    "parallel":      "nn optim",
    "observe":       "parallel checkpoint",
    "train":         "observe data",
    "toolkit":       "train",  # No component of the core may include it.
}

# Sub-components and the subcomponents of the same component that they may include, besides the
# component's root. Sub-components that are not listed may include all of their component if no
# cycle arises. So may tests.
SUBCOMPONENTS = {
    "parallel/detail":          "",
    "parallel/gradients":       "",
    "parallel/deterministic":          "gradients replicate",
    "parallel/shard":           "gradients",
    "parallel/replicate":       "detail gradients shard",
    "parallel/local_steps":     "gradients replicate",
    "parallel/shared_parameters":        "gradients replicate",
    "parallel/fully_sharded":   "gradients shared_parameters replicate",
    "parallel/tensor_parallel": "gradients",
    "parallel/pipeline":        "detail fully_sharded gradients replicate tensor_parallel",
    "toolkit/average":          "",
    "toolkit/compiled":         "",
    "toolkit/datasets":         "",
    "toolkit/datasets/arrays":  "datasets",
    "toolkit/datasets/images":  "datasets",
    "toolkit/datasets/shards":  "datasets datasets/images",
    "toolkit/datasets/tokens":  "datasets datasets/arrays",
    "toolkit/lora":             "",
    "toolkit/plan":             "",
    "toolkit/prune":            "",
    "toolkit/run_log":          "",
    "toolkit/schedules":        "",
}

WITHOUT_TORCH = {"base", "job", "comm", "launch"}


def reach(component):
    """Returns all components that the table lets `component` include."""
    found = set()
    for used in COMPONENTS[component].split():
        found |= {used} | reach(used)
    return found


def complaints(tree):
    """Returns the includes that break the two tables."""
    for file in tree.library:
        if file.component not in COMPONENTS:
            yield (f"{file.path}:1: component '{file.component}' is not in COMPONENTS of "
                   "tests/tidy/dependencies.py")
            continue
        for include in file.includes:
            if reason := refusal(file, subcomponent_of(include.name)):
                yield f"{file.path}:{include.line}: {reason}"


def refusal(file, used):
    """Returns why a file may not include a header of the folder `used`; None if it may."""
    component = used.split("/")[0]
    if not component:
        return f"{file.component} may not include an umbrella header"
    if component != file.component:
        if component in reach(file.component):
            return None
        return f"{file.component} may not include {component}"
    if (file.is_test or file.subcomponent not in SUBCOMPONENTS or
            used in {file.subcomponent, component}):
        return None
    allowed = {f"{component}/{name}" for name in SUBCOMPONENTS[file.subcomponent].split()}
    return None if used in allowed else f"{file.subcomponent} may not include {used}"


# --- Cycles between subcomponents ----------------------------------------------------------------


def subcomponent_dependencies(tree):
    """Returns, for each component, {sub-component: {included sub-component: FILE:LINE of the
    first include}}."""
    found = collections.defaultdict(dict)
    for file in tree.product:
        for include in file.includes:
            used = subcomponent_of(include.name)
            if used != file.subcomponent and used.split("/")[0] == file.component:
                found[file.subcomponent].setdefault(used, f"{file.path}:{include.line}")
    return found


def way(dependencies, start, end):
    """Returns the shortest chain of dependencies from `start` to `end`; None if there is none."""
    chains, seen = collections.deque([[start]]), {start}
    while chains:
        chain = chains.popleft()
        if chain[-1] == end:
            return chain
        for used in sorted(dependencies.get(chain[-1], ())):
            if used not in seen:
                seen.add(used)
                chains.append(chain + [used])
    return None


def arrows_in_circles(tree):
    """Returns each dependency between subcomponents from whose end a path leads back."""
    dependencies = subcomponent_dependencies(tree)
    found = []
    for user, used_components in sorted(dependencies.items()):
        for used, where in sorted(used_components.items()):
            if back := way(dependencies, used, user):
                chain = " -> ".join([user, *back])
                found.append(Offence(f"{user} -> {used}", where, f"a cycle of components: {chain}"))
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
            component = subcomponent_of(include.name).split("/")[0]
            if (component and component != file.component and
                    include.name not in tree.offered_headers):
                found.append(Offence(
                    f"{file.path}: {include.name}", f"{file.path}:{include.line}",
                    f"{include.name} is private to {component}: "
                    "it is neither in HEADERS nor in OFFERS there"))
    return found
