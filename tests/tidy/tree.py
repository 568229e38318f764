# SPDX-License-Identifier: Apache-2.0
"""The examined tree: its files, their includes, the components, and the headers that CMake
installs."""

import dataclasses
import functools
import pathlib
import re

FOLDERS = ("lockstep", "tools", "examples", "tests", "bench", "python", "docs", "cmake",
           "packaging")
SUFFIXES = {".h", ".cpp", ".c", ".py", ".sh", ".md", ".cmake"}
NAMES = {"CMakeLists.txt", "dev"}


@dataclasses.dataclass(frozen=True)
class Include:
    line: int
    name: str  # As it is written between the quotes.


@dataclasses.dataclass(frozen=True)
class File:
    path: pathlib.PurePosixPath  # From the root of the tree.
    text: str

    @functools.cached_property
    def lines(self):
        return self.text.splitlines()

    @functools.cached_property
    def includes(self):
        """The includes of Lockstep's own headers."""
        return [Include(self.text.count("\n", 0, match.start()) + 1, match[1])
                for match in re.finditer(r'^#include [<"](lockstep/[^">]+)', self.text, re.M)]

    @property
    def is_cpp(self):
        return self.path.suffix in {".h", ".cpp", ".c"}

    @property
    def in_library(self):
        """True in a component of lockstep/, but not for the umbrella headers beside the
        components."""
        return self.is_cpp and self.path.parts[0] == "lockstep" and len(self.path.parts) > 2

    @property
    def is_test(self):
        return self.path.stem.endswith("_test") or self.path.parts[0] == "tests"

    @property
    def component(self):
        """The component of a file in lockstep/; otherwise the top-level folder, such as "tools"."""
        return self.path.parts[1] if self.in_library else self.path.parts[0]

    @property
    def subcomponent(self):
        """The folder of a file in lockstep/, such as "comm/shm"; the component itself for its
        root."""
        return "/".join(self.path.parts[1:-1])


def subcomponent_of(header):
    """Returns the folder of an included header, without lockstep/; empty for an umbrella header."""
    return "/".join(header.split("/")[1:-1])


class Tree:
    """All sources and documents below `root`. Reads each file once."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.files = [self._read(path) for path in self._paths()]

    def _paths(self):
        for folder in FOLDERS:
            yield from sorted(path for path in (self.root / folder).rglob("*")
                              if path.suffix in SUFFIXES or path.name in NAMES)
        yield from sorted(path for path in self.root.glob("*")
                          if path.is_file() and (path.suffix in SUFFIXES or path.name in NAMES))
        yield from sorted(self.root.glob(".ci/*"))

    def _read(self, path):
        return File(pathlib.PurePosixPath(path.relative_to(self.root).as_posix()), path.read_text())

    @property
    def library(self):
        return [file for file in self.files if file.in_library]

    @property
    def product(self):
        """The library without its tests."""
        return [file for file in self.library if not file.is_test]

    @functools.cached_property
    def offered_headers(self):
        """The headers in HEADERS and OFFERS of a lockstep_component(), as they are included."""
        return self._headers({"HEADERS", "OFFERS"})

    @functools.cached_property
    def public_headers(self):
        """The headers in HEADERS of a lockstep_component(), as they are included."""
        return self._headers({"HEADERS"})

    def _headers(self, keywords):
        found = set()
        for file in self.files:
            if file.path.name == "CMakeLists.txt" and file.path.parts[0] == "lockstep":
                code = re.sub(r"#.*", "", file.text)
                for component in re.findall(r"lockstep_component\(([^)]*)\)", code):
                    for header in words_behind(keywords, component.split()):
                        found.add((file.path.parent / header).as_posix())
        return found


def words_behind(keywords, arguments):
    """Returns the arguments of lockstep_component() behind one of these keywords."""
    listed = False
    for word in arguments:
        if word in {"HEADERS", "OFFERS", "SOURCES", "TESTS"}:
            listed = word in keywords
        elif listed:
            yield word
