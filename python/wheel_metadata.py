# SPDX-License-Identifier: Apache-2.0
"""What scikit-build-core asks for when it makes the wheel: its version and its dependencies.

The library in the wheel is for one minor version of PyTorch, that of the environment it is built
in. The version says so, as in 0.1.0+torch2.13, and pip installs the wheel beside no other.
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
