# SPDX-License-Identifier: Apache-2.0
"""Provides the wheel's version and dependencies to scikit-build-core.

The library in the wheel is for the minor version of PyTorch in the build environment. The
wheel's version contains it, as in 0.1.0+torch2.13, and pip installs the wheel only with this
version.
"""

import importlib.metadata
import pathlib
import re

CMAKE_LISTS = pathlib.Path(__file__).parents[1] / "CMakeLists.txt"


def dynamic_metadata(field, settings=None):
    """Returns the value of `field`, "version" or "dependencies"."""
    del settings
    torch = ".".join(importlib.metadata.version("torch").split(".")[:2])
    if field == "dependencies":
        return [f"torch=={torch}.*"]
    assert field == "version", field
    version = re.search(r"project\(Lockstep VERSION ([0-9.]+)", CMAKE_LISTS.read_text())[1]
    return f"{version}+torch{torch}"
