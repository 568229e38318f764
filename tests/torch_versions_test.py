#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every unit compiles against the headers of other versions of LibTorch, without a warning.

torch_versions_test.py COMPILE_COMMANDS --torch TORCH FOLDER: each folder in FOLDER has the headers
of one version, as TORCH has, which the commands name. `./dev test --long` fetches them.
"""

import argparse
import pathlib
import sys

from commands import skip
from syntax_checks import check, units_with


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", type=pathlib.Path)
    parser.add_argument("--torch", type=pathlib.Path, required=True)
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    versions = sorted(options.folder.absolute().glob("*/include/torch"))
    if not versions:
        skip(f"no headers are in {options.folder}; `./dev test --long` fetches them")
    torch = options.torch.absolute()
    units = units_with(options.commands, torch)
    failures = 0
    for version in versions:
        other = version.parents[1]
        failures += check(units, other.name,
                          lambda words: [word.replace(str(torch), str(other)) for word in words])
    sys.exit(f"{failures} units do not compile" if failures else 0)


if __name__ == "__main__":
    main()
