#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each failure of docs/guide/troubleshooting.md prints the message that the page shows: at most
three lines, with what happened, who caused it, and what to do.

troubleshooting_test.py --lockstep LOCKSTEP --training FAILING_TRAINING --file-faults LIBRARY
    --other-torch LIBRARY [--write]

--write replaces the messages on the page.
"""

import argparse
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from ports import free_port  # noqa: E402

OPTIONS = None
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/guide/troubleshooting.md"
WIDTH = 100  # Of the page's lines.
OF_A_JOB = ("RANK", "WORLD_SIZE", "LOCAL_", "LOCKSTEP_", "MASTER_", "PET_", "TORCHELASTIC_",
            "OMPI_", "PMI", "SLURM_")


def environment(**added):
    bare = {key: value for key, value in os.environ.items() if not key.startswith(OF_A_JOB)}
    return bare | {"OMP_NUM_THREADS": "1"} | added


def run(*words, **added):
    """Returns what a user sees."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([str(word) for word in words], cwd=folder, text=True, timeout=60,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env=environment(**added))
    assert done.returncode != 0, f"{words} did not fail"
    return done.stdout


def train(what, *options, **added):
    return run(OPTIONS.lockstep, "run", "-n", 2, *options, OPTIONS.training, what, **added)


def rank_dies():
    return train("dies")


def wrong_world_size():
    script = 'test "$RANK" = 0 || export WORLD_SIZE=4; exec "$0"'
    return run(OPTIONS.lockstep, "run", "-n", 2, "sh", "-c", script, OPTIONS.training)


def no_launcher():
    return run(OPTIONS.training)


def disk_full():
    return train("save", LD_PRELOAD=OPTIONS.file_faults,
                 LOCKSTEP_TEST_FAULT=f"in={tempfile.gettempdir()} rank=1 at=3 do=enospc")


def wrong_torch():
    return run(OPTIONS.lockstep, "run", OPTIONS.training, LD_PRELOAD=OPTIONS.other_torch)


def missing_token():
    # An address that only stands for another one: every host has it.
    endpoint = f"0.0.0.0:{free_port()}"
    return run(OPTIONS.lockstep, "run", "--nnodes", 2, "--rdzv-endpoint", endpoint,
               OPTIONS.training)


def port_in_use():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        return train("", "--master-port", other.getsockname()[1])


FAILURES = {
    "A rank dies": [rank_dies],
    "Wrong world size": [wrong_world_size],
    "No launcher": [no_launcher],
    "Shapes differ between ranks": [lambda: train("shape"), lambda: train("model")],
    "Unused parameter": [lambda: train("unused")],
    "NaN": [lambda: train("nan")],
    "Disk full": [disk_full],
    "Wrong LibTorch": [wrong_torch],
    "Missing token": [missing_token],
    "Port in use": [port_in_use],
}


def normalised(text):
    """Replaces what differs between runs and machines."""
    # On a busy host, a rank may be ended before it fails too.
    for pattern, by in ((rf"\b{re.escape(socket.gethostname())}\b", "node0"),
                        (r"; then ranks? [\d,-]+ failed too", ""),
                        (r"pid \d+", "pid 4242"),
                        (r"\.tmp-[0-9a-f]{8}", ".tmp-0a1b2c3d"),
                        (r"process \d+", "process 4242"),
                        (r"process 4242 \(.*\)", "process 4242 (PROGRAM)"),
                        (r"0\.0\.0\.0|127\.0\.0\.1", "node0"),
                        (r"node0:\d+", "node0:29400"),
                        (r"port \d+", "port 29400"),
                        (r" \[[^] ]*:\d+\]", ""),
                        (r"LibTorch 2\.(?!99)\d+", "LibTorch 2.13"),
                        (r"\b\d+\.\d+ s\b", "1.0 s"),
                        (r"/\S*/(?=checkpoints)", "")):
        text = re.sub(pattern, by, text, flags=re.M)
    return text


def shown(text):
    """Returns a message as the page shows it."""
    wrapped = (textwrap.wrap(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False,
                             break_long_words=False)
               for line in normalised(text).splitlines())
    return "".join(f"{line}\n" for lines in wrapped for line in lines)


def section(page, title):
    """Returns the bounds of a section's text."""
    begin = page.index(f"\n## {title}\n")
    end = page.find("\n## ", begin + 1)
    return begin, len(page) if end < 0 else end


def messages(text):
    return re.findall(r"^```\n(.*?)^```$", text, re.M | re.S)


def write():
    page = PAGE.read_text()
    for title, failures in FAILURES.items():
        begin, end = section(page, title)
        new = iter([shown(fail()) for fail in failures])
        text = re.sub(r"^```\n.*?^```$", lambda _: f"```\n{next(new)}```", page[begin:end],
                      flags=re.M | re.S)
        page = page[:begin] + text + page[end:]
    PAGE.write_text(page)


class Troubleshooting(unittest.TestCase):
    def check(self, title, text):
        lines = text.splitlines()
        self.assertLessEqual(len(lines), 3, text)
        self.assertEqual(len(lines), len(set(lines)), text)
        _, who, to_do = (re.sub(r"^lockstep (run|error): ", "", line) for line in lines)
        self.assertTrue(who.startswith("caused by "), text)
        self.assertTrue(to_do.startswith("to do: "), text)

    def test_each_failure_prints_three_lines_which_the_page_shows(self):
        page = PAGE.read_text()
        self.assertEqual(re.findall(r"^## (.*)", page, re.M)[:len(FAILURES)], list(FAILURES))
        for title, failures in FAILURES.items():
            with self.subTest(title):
                begin, end = section(page, title)
                texts = [fail() for fail in failures]
                for text in texts:
                    self.check(title, text)
                self.assertEqual(messages(page[begin:end]), [shown(text) for text in texts],
                                 "renew the page with --write")


def main():
    global OPTIONS
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--training", required=True)
    parser.add_argument("--file-faults", required=True)
    parser.add_argument("--other-torch", required=True)
    parser.add_argument("--write", action="store_true")
    OPTIONS, rest = parser.parse_known_args()
    if OPTIONS.write:
        return write()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
