# SPDX-License-Identifier: Apache-2.0
"""The command `lockstep`, as in `lockstep run -n 2 python train.py`. Its programs are in bin/ of
the package.

It is a module beside the package because the package imports torch, which takes seconds.
"""

import os
import sys
from typing import NoReturn

PROGRAM = os.path.join(os.path.dirname(__file__), "lockstep", "bin", "lockstep")


def main() -> NoReturn:
    os.execv(PROGRAM, [PROGRAM, *sys.argv[1:]])
