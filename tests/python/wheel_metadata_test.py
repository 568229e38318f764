#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A wheel's version names the minor version of PyTorch that it needs: python/wheel_metadata.py."""

import importlib.metadata
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import torch_or_skip  # noqa: F401, E402
from wheel_metadata import dynamic_metadata  # noqa: E402


class WheelMetadata(unittest.TestCase):
    minor = re.match(r"\d+\.\d+", importlib.metadata.version("torch"))[0]

    def test_the_version_has_that_of_the_project_and_that_of_torch(self):
        version, local = dynamic_metadata("version").split("+")
        self.assertIn(f"project(Lockstep VERSION {version} ", (ROOT / "CMakeLists.txt").read_text())
        self.assertEqual(local, f"torch{self.minor}")

    def test_the_dependency_is_torch_of_the_same_minor_version(self):
        self.assertEqual(dynamic_metadata("dependencies"), [f"torch=={self.minor}.*"])


if __name__ == "__main__":
    unittest.main()
