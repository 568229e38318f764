# SPDX-License-Identifier: Apache-2.0
"""The command `lockstep`, as in `lockstep run -n 2 python train.py`. Its programs are in bin/."""

import os
import pathlib
import sys
from typing import NoReturn

PROGRAMS = pathlib.Path(__file__).parent / "bin"


def main() -> NoReturn:
    program = PROGRAMS / "lockstep"
    os.execv(program, [str(program), *sys.argv[1:]])
