#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./dev build` configures tests and benchmarks, except with --no-tests."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]

# All Debian packages are installed, and CMake only notes its arguments.
PROGRAMS = {"dpkg-query": "#!/bin/sh\necho installed\n",
            "cmake": '#!/bin/sh\necho "$@" >>"$CMAKE_CALLS"\n'}


class Build(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for file in ("dev", "cmake/Torch.cmake"):
            (self.root / file).parent.mkdir(exist_ok=True)
            shutil.copy(SOURCE / file, self.root / file)
        (self.root / "build/release").mkdir(parents=True)
        (self.root / "bin").mkdir()
        for name, text in PROGRAMS.items():
            (self.root / "bin" / name).write_text(text)
            (self.root / "bin" / name).chmod(0o755)
        torch = self.root / "torch"
        torch.mkdir()
        (torch / "TorchConfig.cmake").touch()
        (torch / "TorchConfigVersion.cmake").write_text('set(PACKAGE_VERSION "2.13.0")\n')
        self.calls = self.root / "calls"
        self.environment = os.environ | {"PATH": f"{self.root}/bin:{os.environ['PATH']}",
                                         "CMAKE_CALLS": str(self.calls),
                                         "LOCKSTEP_TORCH": str(torch),
                                         "LOCKSTEP_NO_INSTALL": "1"}

    def configured(self, *words):
        """Returns the arguments of `cmake -S`; empty if ./dev did not configure."""
        self.calls.write_text("")
        subprocess.run([self.root / "dev", "build", *words], env=self.environment, check=True,
                       stdout=subprocess.DEVNULL, timeout=60)
        calls = self.calls.read_text().splitlines()
        self.assertTrue(calls[-1].startswith("--build "), calls)
        return "".join(calls[:-1]).split()

    def test_everything_is_built_unless_the_tests_are_left_out(self):
        for words, value in (((), "ON"), (("--no-tests",), "OFF"), ((), "ON")):
            arguments = self.configured(*words)
            for part in ("TESTS", "BENCHMARKS"):
                self.assertIn(f"-DLOCKSTEP_BUILD_{part}={value}", arguments)

    def test_another_option_is_a_usage_error(self):
        done = subprocess.run([self.root / "dev", "build", "--tests"], env=self.environment,
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 64, done.stderr)
        self.assertIn("build takes only --no-tests", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
