# SPDX-License-Identifier: Apache-2.0
"""One version: project() in CMakeLists.txt has it, and all other places agree."""

import re

SOURCE = "CMakeLists.txt"
PROJECT = r"project\(Lockstep VERSION ([0-9.]+)"

# Files that cannot read CMakeLists.txt, with the text around the version. Files may be missing,
# because not every tree has all of them.
COPIES = {
    "CHANGELOG.md": r"^## ([0-9][^ ,\n]*)",  # The topmost one.
    "packaging/conda/recipe.yaml": r'^  version: "([^"]*)"',
    "packaging/vcpkg/lockstep/vcpkg.json": r'^  "version": "([^"]*)"',
}

REQUESTED = re.compile(r"find_package\(Lockstep ([0-9.]+)")


def complaints(tree):
    found = re.search(PROJECT, text_of(tree, SOURCE) or "")
    if not found:
        return
    version = found[1]
    for name, pattern in COPIES.items():
        if (text := text_of(tree, name)) is not None:
            yield from differences(name, re.search(pattern, text, re.M), version, text)
    yield from requests(tree, ".".join(version.split(".")[:2]))


def text_of(tree, name):
    path = tree.root / name
    return path.read_text() if path.exists() else None


def differences(name, match, version, text):
    if not match:
        yield f"{name}:1: no version, which {SOURCE} says is {version}"
    elif match[1] != version:
        line = text.count("\n", 0, match.start(1)) + 1
        yield f"{name}:{line}: version {match[1]}, but {SOURCE} says {version}"


def requests(tree, minor):
    """Before 1.0 a program asks for a minor version."""
    for file in tree.files:
        for number, line in enumerate(file.lines, 1):
            for asked in REQUESTED.findall(line):
                if asked != minor:
                    yield f"{file.path}:{number}: asks for Lockstep {asked}, but this is {minor}"
