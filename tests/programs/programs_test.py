#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ported programs compute on every number of ranks what they computed as one process.

programs_test.py --lockstep LOCKSTEP --programs PORTED_PROGRAMS --source FOLDER

before/NAME.cpp is a program of LibTorch, after/NAME.cpp its port. docs/guide/porting.md shows their
differences.
"""

import argparse
import difflib
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from ports import free_port  # noqa: E402

OPTIONS = None
HERE = pathlib.Path(__file__).resolve().parent
NAMES = sorted(path.stem for path in (HERE / "before").glob("*.cpp"))

# Before the port, its DataLoader reads the samples in another order: LibTorch has its own shuffle.
SHUFFLED = {"digits"}

# Their losses become sums that are divided later, which changes the rounding.
DIVIDED_LATER = {"language_model", "policy"}

# In double precision, sums in another order differ by less, and wrong means by more.
ROUNDING = 1e-9


def environment(**added):
    return os.environ | {"OMP_NUM_THREADS": "1"} | added


def start(command, folder, **added):
    return subprocess.Popen([str(word) for word in command], cwd=folder, text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=environment(**added))


def finish(process, code=0):
    """Returns the process's stdout and stderr. It must exit with `code`."""
    out, err = process.communicate(timeout=120)
    if process.returncode != code:
        raise AssertionError(f"{process.args}: exit code {process.returncode}\n{out}{err}")
    return out, err


def run(command, folder):
    return finish(start(command, folder))[0]


def ranks(number):
    return [OPTIONS.lockstep, "run", "-n", number]


class Run:
    """A finished run: the lines that it printed, and its files."""

    def __init__(self, scratch, name, number):
        self.folder = scratch / f"{name}-{number}"
        self.folder.mkdir()
        for file in (scratch / "common").iterdir():
            (self.folder / file.name).symlink_to(file)
        launcher, when = (ranks(number), "after") if number else ([], "before")
        text = run([*launcher, OPTIONS.programs, when, name], self.folder)
        self.lines = [re.sub(r"^\[\d+\]:? ?", "", line) for line in text.splitlines()]
        self.files = sorted(path for path in self.folder.glob("*.pt") if not path.is_symlink())


def difference(left, right):
    """Returns the largest difference between two saved modules, in proportion to the weights."""
    return float(run([OPTIONS.programs, "difference", left, right], left.parent))


def changes(name, context=1000):
    before, after = ((HERE / when / f"{name}.cpp").read_text().splitlines()
                     for when in ("before", "after"))
    return list(difflib.unified_diff(before, after, lineterm="", n=context))[3:]


@functools.cache
def page():
    return (OPTIONS.source / "docs" / "guide" / "porting.md").read_text()


class Programs(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)
        (self.scratch / "common").mkdir()
        run([OPTIONS.programs, "write_script", "scripted.pt"], self.scratch / "common")

    def same(self, left, right, tolerance):
        self.assertEqual(left.lines, right.lines)
        self.assertTrue(left.lines and left.files)
        self.assertEqual([file.name for file in left.files], [file.name for file in right.files])
        for mine, other in zip(left.files, right.files):
            self.assertLessEqual(difference(mine, other), tolerance, mine)

    def test_each_number_of_ranks_equals_one_process_on_the_whole_batch(self):
        for name in NAMES:
            before, one, two, three = (Run(self.scratch, name, number) for number in range(4))
            with self.subTest(name):
                if name not in SHUFFLED:
                    self.same(before, one, ROUNDING if name in DIVIDED_LATER else 0)
                self.same(one, two, ROUNDING)
                self.same(one, three, ROUNDING)


    def test_ranks_with_torchruns_variables_need_no_launcher(self):
        launched = Run(self.scratch, "regression", 2)
        port = str(free_port())
        ranks_alone = [
            start([OPTIONS.programs, "after", "regression"], self.scratch, RANK=str(rank),
                  LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2",
                  MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TORCHELASTIC_RUN_ID="ported")
            for rank in range(2)]
        lines = [finish(rank)[0].splitlines() for rank in ranks_alone]
        self.assertEqual(lines, [launched.lines, []])

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun (Debian's package openmpi-bin)")
    def test_mpirun_starts_a_ported_program(self):
        launched = Run(self.scratch, "by_hand", 2)
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2",
                   OPTIONS.programs, "after", "by_hand"]
        self.assertEqual(run(command, self.scratch).splitlines(), launched.lines)

    def test_a_stop_test_on_a_local_loss_is_the_error_that_the_page_shows(self):
        done = start([*ranks(2), OPTIONS.programs, "wrong", "regression"], self.scratch)
        _, err = finish(done, code=1)
        shown = re.search(r"^```\n(mismatch: .*?)\n```$", page(), re.DOTALL | re.MULTILINE)[1]

        def without_numbers(text):
            return re.sub(r"#\d+|\d+ uint8|on rank \d", "N", " ".join(text.split()))
        self.assertIn(without_numbers(shown), without_numbers(err))


class Page(unittest.TestCase):
    def test_the_changes_it_shows_are_those_of_the_programs(self):
        whole = {name: "\n".join(changes(name)) for name in NAMES}
        blocks = re.findall("```diff\n(.*?)```", page(), re.DOTALL)
        self.assertTrue(blocks)
        for block in blocks:
            for part in block.split(" ...\n"):
                self.assertTrue(any(part.rstrip("\n") in text for text in whole.values()), part)

    def test_the_numbers_of_lines_are_those_of_the_programs(self):
        numbers = dict(re.findall(r"^\| .*`(\w+)\.cpp` \| (\d+) \|$", page(), re.MULTILINE))
        added = {name: str(sum(line.startswith("+") for line in changes(name))) for name in NAMES}
        self.assertEqual(numbers, added)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lockstep", type=pathlib.Path, required=True)
    parser.add_argument("--programs", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
