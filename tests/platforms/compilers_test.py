#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every unit compiles with another compiler or standard of C++, without a warning.

compilers_test.py COMPILE_COMMANDS COMPILER STANDARD: checks the units of a build by GCC, such as
with clang++-19 and c++23. Skipped if the compiler is not installed.
"""

import argparse
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from commands import skip  # noqa: E402
from syntax_checks import check, syntax_check, units_of  # noqa: E402

# Options of a build by GCC that Clang does not know.
ONLY_GCC = ("-fpch-preprocess", "-Winvalid-pch", "-Wno-maybe-uninitialized",
            "-Wno-subobject-linkage")
# Clang 19 reports a deprecated function that std::stable_sort() of libstdc++ 12 calls. GCC, which
# has compiled the build, reports the project's own calls of deprecated functions.
ONLY_CLANG = ("-Wno-deprecated-declarations",)
# Names of standards that older compilers do not know yet.
STANDARDS = {"c++23": "c++2b"}


class Edit:
    """Changes commands of the build to those of another compiler and standard."""

    def __init__(self, compiler, standard):
        version = subprocess.run([compiler, "--version"], text=True, check=True,
                                 stdout=subprocess.PIPE).stdout
        self.compiler = compiler
        self.dropped, self.added = (ONLY_GCC, ONLY_CLANG) if "clang" in version else ((), ())
        self.standard = f"-std={STANDARDS.get(standard, standard)}"

    def __call__(self, words):
        kept = [self.standard if word.startswith("-std=") else word
                for word in words[1:] if word not in self.dropped]
        return [self.compiler, "-Werror", *self.added, *kept]


def included_header(unit):
    """Returns the header that the build has precompiled for a unit, if any."""
    words = shlex.split(unit["command"])
    return words[words.index("-include") + 1] if "-include" in words else None


def precompile(unit, header, edit, folder):
    """Precompiles a header as a unit of the build does. Returns a header that includes it.

    Both compilers find FILE.gch beside the FILE that an option -include names.
    """
    including = pathlib.Path(tempfile.mkdtemp(dir=folder), "precompiled.hxx")
    including.write_text(f'#include "{header}"\n')
    *words, _, _ = edit(syntax_check(unit["command"]))  # Without its file and -fsyntax-only.
    subprocess.run([*words, including, "-o", f"{including}.gch"], cwd=unit["directory"], check=True)
    return including


def check_with_header(units, header, edit, name, folder):
    """Checks the units that include a precompiled header, or those that include none."""
    first = [unit for unit in units if "-x c++-header" in unit["command"]]
    others = [unit for unit in units if unit not in first]
    if header is None:
        return check(others, name, edit)
    including = precompile(first[0], header, edit, folder)
    return check(others, name, lambda words: [*edit(words), "-include", str(including)])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", type=pathlib.Path)
    parser.add_argument("compiler")
    parser.add_argument("standard")
    options = parser.parse_args()
    if not shutil.which(options.compiler):
        skip(f"there is no {options.compiler}")
    by_header = {}
    for unit in units_of(options.commands):
        by_header.setdefault(included_header(unit), []).append(unit)
    edit = Edit(options.compiler, options.standard)
    name = f"{options.compiler} -std={options.standard}"
    with tempfile.TemporaryDirectory() as folder:
        failures = sum(check_with_header(units, header, edit, name, folder)
                       for header, units in by_header.items())
    sys.exit(f"{failures} units do not compile" if failures else 0)


if __name__ == "__main__":
    main()
