#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The examples train, save, load, and refuse what is wrong before they begin."""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from small_datasets import write_cifar10, write_fashion_mnist  # noqa: E402

PROGRAMS = None  # What main() was told.


def run(ranks, program, *options):
    command = [PROGRAMS.lockstep, "run", "-n", ranks, program, *options]
    return subprocess.run([str(word) for word in command], text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})


class Examples(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.data = self.folder / "data"

    def train(self, ranks, program, *options):
        done = run(ranks, program, "--data", self.data, *options)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def refuses(self, program, *options, code, text):
        done = run(2, program, *options)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn(text, done.stdout + done.stderr)

    def test_fashion_mnist_learns_and_reports(self):
        write_fashion_mnist(self.data)
        result = self.folder / "result.json"
        done = self.train(2, PROGRAMS.fashion_mnist, "--epochs", 4, "--batch-size", 32, "--json", result)
        report = json.loads(result.read_text())
        self.assertEqual((report["world_size"], report["steps"]), (2, 32))
        self.assertGreater(report["accuracy"], 0.8)
        self.assertGreater(report["samples_per_second"], 0)
        self.assertRegex(done.stderr, r"32/32 steps")

    def test_the_same_seed_gives_the_same_weights_and_another_one_others(self):
        write_fashion_mnist(self.data)
        hashes = []
        for seed in (1, 1, 2):
            done = self.train(2, PROGRAMS.fashion_mnist, "--steps", 3, "--seed", seed, "--print-hash")
            hashes.append(re.search(r"sha256 ([0-9a-f]{64})", done.stdout)[1])
        self.assertEqual(hashes[0], hashes[1])
        self.assertNotEqual(hashes[0], hashes[2])

    def test_saved_weights_are_loaded_bit_for_bit_on_another_number_of_ranks(self):
        write_fashion_mnist(self.data)
        weights = self.folder / "weights.safetensors"
        saved = self.train(2, PROGRAMS.fashion_mnist, "--steps", 3, "--save", weights, "--print-hash")
        loaded = self.train(1, PROGRAMS.fashion_mnist, "--epochs", 0, "--load", weights, "--print-hash")
        hash_of = re.compile(r"sha256 ([0-9a-f]{64})")
        self.assertEqual(hash_of.search(saved.stdout)[1], hash_of.search(loaded.stdout)[1])
        accuracy_of = re.compile(r"test accuracy ([\d.]+)")
        self.assertEqual(accuracy_of.search(saved.stdout)[1], accuracy_of.search(loaded.stdout)[1])

    def test_cifar10_learns(self):
        write_cifar10(self.data)
        result = self.folder / "result.json"
        self.train(2, PROGRAMS.cifar10, "--epochs", 4, "--batch-size", 25, "--json", result)
        self.assertGreater(json.loads(result.read_text())["accuracy"], 0.8)

    def test_deterministic_gives_the_same_weights_on_every_number_of_ranks(self):
        write_fashion_mnist(self.data)
        lines = []
        for ranks in (1, 2, 4):
            done = self.train(ranks, PROGRAMS.deterministic, "--epochs", 1, "--batch-size", 64, "--steps", 4)
            lines.append(re.search(r"loss \S+, sha256 [0-9a-f]{64}", done.stdout)[0])
        self.assertEqual(lines[1:], lines[:1] * 2)

    def test_deterministic_goes_on_with_the_same_bits_on_another_number_of_ranks(self):
        write_fashion_mnist(self.data)
        state = self.folder / "state"
        sha256 = re.compile(r"sha256 [0-9a-f]{64}")
        whole = self.train(1, PROGRAMS.deterministic, "--steps", 4)
        self.train(2, PROGRAMS.deterministic, "--steps", 2, "--save", state)
        resumed = self.train(4, PROGRAMS.deterministic, "--steps", 4, "--load", state)
        self.assertEqual(sha256.search(resumed.stdout)[0], sha256.search(whole.stdout)[0])

    def test_wrong_arguments_are_refused_before_training(self):
        program = PROGRAMS.fashion_mnist
        self.refuses(program, "--batch-size", 0, code=64, text="--batch-size")
        self.refuses(program, "--no-such-option", code=64, text="--no-such-option")
        self.refuses(program, "--save", "", code=64, text="a file name is needed")
        self.refuses(program, "--save", "/no/such/folder/file", code=64, text="/no/such/folder")
        self.refuses(program, "--load", "/no/such/file", code=64, text="/no/such/file")

    def test_missing_and_damaged_data_are_named(self):
        program = PROGRAMS.fashion_mnist
        self.refuses(program, "--data", self.data, code=1, text=str(self.data))
        write_fashion_mnist(self.data)
        images = self.data / "train-images-idx3-ubyte"
        images.write_bytes(images.read_bytes()[:-1])
        self.refuses(program, "--data", self.data, code=1, text="train-images-idx3-ubyte")

    def test_help_has_an_example(self):
        for program in (PROGRAMS.fashion_mnist, PROGRAMS.cifar10, PROGRAMS.deterministic):
            done = subprocess.run([program, "--help"], text=True, stdout=subprocess.PIPE, check=True)
            self.assertIn("lockstep run -n 2", done.stdout)

    def test_without_a_launcher_it_says_what_to_do(self):
        bare = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        done = subprocess.run([PROGRAMS.fashion_mnist], text=True, stderr=subprocess.PIPE, env=bare)
        self.assertEqual(done.returncode, 1)
        self.assertIn("lockstep run -n 2", done.stderr)


def main():
    global PROGRAMS
    parser = argparse.ArgumentParser(description=__doc__)
    for program in ("lockstep", "fashion-mnist", "cifar10", "deterministic"):
        parser.add_argument(f"--{program}", type=pathlib.Path, required=True)
    PROGRAMS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
