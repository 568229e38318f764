#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The examples train, save, load, and refuse wrong options before they begin."""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from processes import kill_all, soon  # noqa: E402
from sample_logs import SampleLog  # noqa: E402
from small_datasets import write_cifar10, write_fashion_mnist, write_image_folder  # noqa: E402

PROGRAMS = None  # The programs named on the command line.


def run(ranks, program, *options):
    command = [PROGRAMS.lockstep, "run", "-n", ranks, program, *options]
    return subprocess.run([str(word) for word in command], text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})


def hash_of(done):
    return re.search(r"sha256 ([0-9a-f]{64})", done.stdout)[1]


def checkpoints_in(folder):
    """Returns the names of complete checkpoints, oldest first."""
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(name for name in names if re.fullmatch(r"step-\d{10}", name))


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
        done = self.train(2, PROGRAMS.fashion_mnist, "--epochs", 4, "--batch-size", 32, "--json",
                          result)
        report = json.loads(result.read_text())
        self.assertEqual((report["world_size"], report["steps"]), (2, 32))
        self.assertGreater(report["accuracy"], 0.8)
        self.assertGreater(report["samples_per_second"], 0)
        self.assertRegex(done.stderr, r"32/32 steps.*, data \d+ %, wait \d+ % for rank 1")

    def test_the_same_seed_gives_the_same_weights_and_another_one_others(self):
        write_fashion_mnist(self.data)
        hashes = []
        for seed in (1, 1, 2):
            done = self.train(2, PROGRAMS.fashion_mnist, "--steps", 3, "--seed", seed,
                              "--print-hash")
            hashes.append(re.search(r"sha256 ([0-9a-f]{64})", done.stdout)[1])
        self.assertEqual(hashes[0], hashes[1])
        self.assertNotEqual(hashes[0], hashes[2])

    def test_saved_weights_are_loaded_bit_for_bit_on_another_number_of_ranks(self):
        write_fashion_mnist(self.data)
        weights = self.folder / "weights.safetensors"
        saved = self.train(2, PROGRAMS.fashion_mnist, "--steps", 3, "--save", weights,
                           "--print-hash")
        loaded = self.train(1, PROGRAMS.fashion_mnist, "--epochs", 0, "--load", weights,
                            "--print-hash")
        hash_of = re.compile(r"sha256 ([0-9a-f]{64})")
        self.assertEqual(hash_of.search(saved.stdout)[1], hash_of.search(loaded.stdout)[1])
        accuracy_of = re.compile(r"test accuracy ([\d.]+)")
        self.assertEqual(accuracy_of.search(saved.stdout)[1], accuracy_of.search(loaded.stdout)[1])

    def test_cifar10_learns(self):
        write_cifar10(self.data)
        result = self.folder / "result.json"
        self.train(2, PROGRAMS.cifar10, "--epochs", 4, "--batch-size", 25, "--json", result)
        self.assertGreater(json.loads(result.read_text())["accuracy"], 0.8)

    def test_imagenet_learns_from_a_folder_with_and_without_a_cache(self):
        write_image_folder(self.data)
        (self.data / "train" / "class-2" / "7.jpg").write_bytes(b"no image")
        lines = []
        for options in ((), ("--cache", 64)):
            done = self.train(2, PROGRAMS.imagenet, "--size", 48, "--epochs", 6,
                              "--batch-size", 10, "--lr", 0.005, "--skip-bad", 1, *options)
            lines.append(done.stdout)
            accuracy = float(re.search(r"accuracy (\S+)", done.stdout)[1])
            self.assertGreater(accuracy, 0.8, done.stdout)
        self.assertIn("0 images in the cache", lines[0])
        self.assertIn("159 images in the cache", lines[1])
        self.refuses(PROGRAMS.imagenet, "--data", self.data, code=65,
                     text="class-2/7.jpg): neither a JPEG, PNG, WebP, GIF, BMP nor PNM image")
        self.refuses(PROGRAMS.imagenet, "--data", self.folder / "none", code=64, text="none")

    def test_imagenet_goes_on_after_its_checkpoint_as_if_it_had_not_ended(self):
        write_image_folder(self.data)
        ends = re.compile(r"accuracy (\S+) on .* after 48 steps, weights (\w+)")
        options = ("--size", 48, "--batch-size", 10, "--lr", 0.005, "--amp", "bf16")
        folder = ("--checkpoint", self.folder / "checkpoints")
        whole = self.train(2, PROGRAMS.imagenet, *options, "--epochs", 6)
        self.train(2, PROGRAMS.imagenet, *options, "--epochs", 2, *folder)
        resumed = self.train(2, PROGRAMS.imagenet, *options, "--epochs", 6, *folder)
        self.assertIn("resumed after step 16", resumed.stderr)
        self.assertEqual(*(ends.search(done.stdout).groups() for done in (whole, resumed)))
        self.assertGreater(float(ends.search(whole.stdout)[1]), 0.8)

    def test_imagenet_refuses_other_classes_in_its_test_than_in_training(self):
        write_image_folder(self.data)
        shutil.rmtree(self.data / "val" / "class-1")
        self.refuses(PROGRAMS.imagenet, "--data", self.data, "--size", 48, code=64,
                     text="only one of them has class-1")

    def test_both_learn_in_bfloat16(self):
        for program, write, batch in ((PROGRAMS.fashion_mnist, write_fashion_mnist, 32),
                                      (PROGRAMS.cifar10, write_cifar10, 25)):
            shutil.rmtree(self.data, ignore_errors=True)
            write(self.data)
            result = self.folder / "result.json"
            self.train(2, program, "--amp", "bf16", "--epochs", 4, "--batch-size", batch, "--json",
                       result)
            self.assertGreater(json.loads(result.read_text())["accuracy"], 0.8)

    def test_float16_is_refused_before_the_data_is_read_if_the_cpu_emulates_it(self):
        if re.search(r"\b(avx512|amx)_fp16\b", pathlib.Path("/proc/cpuinfo").read_text()):
            write_fashion_mnist(self.data)
            self.train(2, PROGRAMS.fashion_mnist, "--amp", "fp16", "--steps", 3)
            return
        for program in PROGRAMS.fashion_mnist, PROGRAMS.cifar10:
            self.refuses(program, "--data", self.folder, "--amp", "fp16", code=78,
                         text="8 to 16 times slower")
            self.refuses(program, "--amp", "int8", code=64, text="--amp")
        self.refuses(PROGRAMS.deterministic, "--amp", "bf16", code=64, text="--amp")

    def test_a_vit_on_two_ranks_learns_what_it_does_on_one(self):
        write_cifar10(self.data)
        results = []
        for tp in (1, 2):
            result = self.folder / f"{tp}.json"
            self.train(tp, PROGRAMS.cifar10, "--model", "vit", "--tp", tp, "--steps", 10,
                       "--batch-size", 25, "--json", result)
            results.append(json.loads(result.read_text()))
        self.assertLess(results[0]["loss"], 2.25)  # log(10) at the first step.
        self.assertAlmostEqual(results[0]["loss"], results[1]["loss"], 4)
        self.assertEqual(results[0]["accuracy"], results[1]["accuracy"])
        self.refuses(PROGRAMS.cifar10, "--tp", 2, code=64, text="--model vit")

    def test_deterministic_gives_the_same_weights_on_every_number_of_ranks(self):
        write_fashion_mnist(self.data)
        lines = []
        for ranks in (1, 2, 4):
            done = self.train(ranks, PROGRAMS.deterministic, "--epochs", 1, "--batch-size", 64,
                              "--steps", 4)
            lines.append(re.search(r"loss \S+, sha256 [0-9a-f]{64}", done.stdout)[0])
        self.assertEqual(lines[1:], lines[:1] * 2)

    def test_deterministic_goes_on_with_the_same_bits_on_another_number_of_ranks(self):
        write_fashion_mnist(self.data)
        whole = hash_of(self.train(1, PROGRAMS.deterministic, "--steps", 12, "--print-hash"))
        for ranks in (1, 4, 8):
            folder = self.folder / f"to-{ranks}"
            # An epoch has eight steps. The training is interrupted within one, at its end, and in
            # the next.
            for step, these in ((3, 2), (8, 4), (9, 2)):
                self.train(these, PROGRAMS.deterministic, "--steps", step, "--checkpoint", folder,
                           "--resume", "auto")
            resumed = self.train(ranks, PROGRAMS.deterministic, "--steps", 12, "--resume", folder)
            self.assertEqual(hash_of(resumed), whole)

    def test_large_batch_gives_the_same_weights_on_every_number_of_ranks(self):
        write_fashion_mnist(self.data)
        hashes = {}
        for method in ("unchanged", "linear", "sqrt", "lars", "lamb"):
            per_method = {hash_of(self.train(ranks, PROGRAMS.large_batch, "--replicas", 2,
                                             "--method", method)) for ranks in (1, 2)}
            self.assertEqual(len(per_method), 1, method)
            hashes[method] = per_method.pop()
        self.assertEqual(len(set(hashes.values())), 5)

    def test_large_batch_takes_fewer_steps_with_more_replicas(self):
        write_fashion_mnist(self.data)
        report = self.folder / "report.json"
        steps = {}
        for replicas in (1, 2):
            self.train(1, PROGRAMS.large_batch, "--replicas", replicas, "--json", report)
            steps[replicas] = json.loads(report.read_text())["steps"]
        self.assertEqual(steps, {1: 16, 2: 8})

    def test_pruning_halves_the_channels_and_finds_the_accuracy_again(self):
        write_fashion_mnist(self.data)
        done = self.train(2, PROGRAMS.pruning, "--epochs", 4, "--fine-tune", 2)
        self.assertRegex(done.stdout, r"conv2 +64 -> 32 +read by linear1")
        self.assertIn("parameters 1,630,090 -> 409,034", done.stdout)
        dense, tuned = (float(re.search(rf"(\S+) {word}", done.stdout)[1])
                        for word in ("dense", "fine-tuned"))
        self.assertGreater(dense, 0.8)
        self.assertGreaterEqual(tuned, dense - 0.01)
        self.refuses(PROGRAMS.pruning, "--sparsity", 1, code=64, text="--sparsity")

    def test_distillation_trains_a_student(self):
        write_fashion_mnist(self.data)
        done = self.train(2, PROGRAMS.distillation, "--epochs", 8)
        alone, distilled = (float(re.search(rf"(\S+) student {word}", done.stdout)[1])
                            for word in ("alone", "of the teacher"))
        self.assertGreater(alone, 0.5)
        self.assertGreaterEqual(distilled, alone)

    def test_large_batch_refuses_what_does_not_fit(self):
        write_fashion_mnist(self.data)
        data = ("--data", self.data)
        self.refuses(PROGRAMS.large_batch, *data, "--replicas", 3, code=1,
                     text="the number of ranks must divide --replicas, 3")
        self.refuses(PROGRAMS.large_batch, *data, "--replicas", 4, code=1,
                     text="--replicas need 1024 images, and there are 512")
        self.refuses(PROGRAMS.large_batch, *data, "--method", "sgd", code=64, text="--method")

    def test_a_training_that_was_killed_goes_on_as_if_it_had_not_been(self):
        write_fashion_mnist(self.data)
        options = ("--steps", 100, "--batch-size", 16)
        whole = hash_of(self.train(2, PROGRAMS.fashion_mnist, *options, "--print-hash"))
        for attempt in range(2):
            folder = self.folder / f"attempt-{attempt}"
            kept = (*options, "--checkpoint", folder, "--checkpoint-every", 5, "--keep", 3,
                    "--resume", "auto", "--print-hash", *(("--async",) if attempt else ()))
            self.kill_in_the_midst(2, PROGRAMS.fashion_mnist, folder, *kept)
            resumed = self.train(2, PROGRAMS.fashion_mnist, *kept)
            self.assertEqual(hash_of(resumed), whole)
            self.assertRegex(resumed.stderr, r"resumed after step \d+")
            self.assertIn("100/100 steps", resumed.stderr)
            self.assertEqual(checkpoints_in(folder),
                             [f"step-{step:010}" for step in (90, 95, 100)])

    def kill_in_the_midst(self, ranks, program, folder, *options):
        """Sends SIGKILL to the launcher and its ranks at a random moment after the first
        checkpoint. They do not end before, as nobody reads the log of their samples."""
        samples = SampleLog(folder.with_name(f"{folder.name}-samples"))
        command = [PROGRAMS.lockstep, "run", "-n", ranks, program, "--data", self.data, *options,
                   "--log-samples", samples.path]
        job = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env=os.environ | {"OMP_NUM_THREADS": "1"})
        soon(lambda: checkpoints_in(folder) or job.poll() is not None)
        self.assertTrue(checkpoints_in(folder), "no checkpoint within a minute")
        time.sleep(random.uniform(0, 0.3))
        kill_all(job.pid)
        job.wait()
        samples.close()

    def test_each_sample_of_an_epoch_is_trained_on_once_on_four_then_two_then_three_ranks(self):
        write_fashion_mnist(self.data)
        folder, logs = self.folder / "checkpoints", []
        for ranks, steps in ((4, 5), (2, 7), (3, 11)):
            logs.append(self.folder / f"log-{ranks}")
            first = ("--batch-size", 12) if ranks == 4 else ()
            done = self.train(ranks, PROGRAMS.fashion_mnist, *first, "--steps", steps,
                              "--checkpoint", folder, "--resume", "auto", "--log-samples", logs[-1])
            self.assertIn(f"{steps}/{steps} steps", done.stderr)
        samples, steps_seen = [], set()
        for ranks, log in zip((4, 2, 3), logs):
            lines = [[int(word) for word in line.split()] for line in log.read_text().splitlines()]
            self.assertEqual({line[1] for line in lines}, set(range(ranks)))
            steps_seen |= {line[0] for line in lines}
            for line in lines:
                samples += line[2:]
        self.assertEqual(steps_seen, set(range(1, 12)))
        # 48 in each of ten steps, then the remaining 32, with one more to fill three ranks.
        self.assertEqual(len(samples), 513)
        self.assertEqual(set(samples), set(range(512)))

    def test_a_resumed_training_keeps_the_batch_of_all_ranks_or_says_so(self):
        write_fashion_mnist(self.data)
        program, folder = PROGRAMS.fashion_mnist, self.folder / "checkpoints"
        self.train(2, program, "--steps", 2, "--batch-size", 8, "--checkpoint", folder)
        done = run(3, program, "--data", self.data, "--steps", 4, "--resume", folder)
        self.assertEqual(done.returncode, 1)
        self.assertIn("16 samples per step cannot be divided among 3 ranks", done.stderr)
        done = self.train(3, program, "--steps", 4, "--resume", folder, "--batch-size", 8)
        self.assertIn("note: --batch-size sets steps of 24 samples", done.stderr)
        self.assertIn("had 16", done.stderr)
        done = run(2, program, "--data", self.data, "--steps", 1, "--resume", folder)
        self.assertEqual(done.returncode, 1)
        self.assertIn("more than --steps", done.stderr)

    def test_a_training_by_epochs_is_resumed_on_another_number_of_ranks(self):
        write_cifar10(self.data)
        program, folder = PROGRAMS.cifar10, self.folder / "checkpoints"
        self.train(2, program, "--steps", 7, "--batch-size", 30, "--checkpoint", folder)
        result = self.folder / "result.json"
        done = self.train(1, program, "--epochs", 2, "--checkpoint", folder, "--resume", "auto",
                          "--json", result)
        # Nine steps of 60 make an epoch of 500.
        self.assertEqual(json.loads(result.read_text())["steps"], 18)
        self.assertIn("18/18 steps", done.stderr)
        again = self.train(2, program, "--epochs", 2, "--checkpoint", folder, "--resume", "auto")
        self.assertIn("resumed after step 18", again.stderr)
        self.assertEqual(len(checkpoints_in(folder)), 2)

    def test_a_damaged_checkpoint_is_refused_and_passed_over_by_auto(self):
        write_fashion_mnist(self.data)
        program, folder = PROGRAMS.fashion_mnist, self.folder / "checkpoints"
        self.train(2, program, "--steps", 4, "--checkpoint", folder, "--checkpoint-every", 2)
        newest = folder / "step-0000000004"
        largest = max((file for file in newest.iterdir() if file.is_file()),
                      key=lambda file: file.stat().st_size)
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)
        train = ("--data", self.data, "--steps", 6)
        self.refuses(program, *train, "--resume", newest, code=65, text=largest.name)
        done = self.train(2, program, "--steps", 3, "--checkpoint", folder, "--resume", "auto")
        self.assertIn("resumed after step 2", done.stderr)

    def test_without_any_checkpoint_auto_starts_anew(self):
        write_fashion_mnist(self.data)
        folder = self.folder / "deep" / "checkpoints"
        done = self.train(2, PROGRAMS.fashion_mnist, "--steps", 2, "--checkpoint", folder,
                          "--resume", "auto")
        self.assertNotIn("resumed", done.stderr)
        self.assertEqual(checkpoints_in(folder), ["step-0000000002"])

    def test_wrong_arguments_are_refused_before_training(self):
        program = PROGRAMS.fashion_mnist
        self.refuses(program, "--batch-size", 0, code=64, text="--batch-size")
        self.refuses(program, "--lr", "nan", code=64, text="--lr")
        self.refuses(program, "--no-such-option", code=64, text="--no-such-option")
        self.refuses(program, "--save", "", code=64, text="a file name is needed")
        self.refuses(program, "--save", "/no/such/folder/file", code=64, text="/no/such/folder")
        self.refuses(program, "--load", "/no/such/file", code=64, text="/no/such/file")
        self.refuses(program, "--resume", "/no/such/folder", code=64, text="/no/such/folder")
        self.refuses(program, "--resume", "auto", code=64, text="--checkpoint")
        self.refuses(program, "--checkpoint-every", 5, code=64, text="--checkpoint")
        self.refuses(program,
                     "--checkpoint",
                     "/dev/null/a",
                     code=64,
                     text="cannot write in /dev/null")

    def test_missing_and_damaged_data_are_named(self):
        program = PROGRAMS.fashion_mnist
        self.refuses(program, "--data", self.data, code=71, text=str(self.data))
        write_fashion_mnist(self.data)
        images = self.data / "train-images-idx3-ubyte"
        images.write_bytes(images.read_bytes()[:-1])
        self.refuses(program, "--data", self.data, code=65, text="train-images-idx3-ubyte")

    def test_a_folder_that_cannot_be_looked_into_is_refused_in_one_line(self):
        program = PROGRAMS.fashion_mnist
        loop = self.folder / "loop"
        loop.symlink_to(loop)
        closed = self.folder / "closed"
        closed.mkdir()
        self.folder.chmod(0o755)
        places = [(loop / "run", "Too many levels of symbolic links"),
                  (self.folder / ("long" * 100), "File name too long")]
        if os.geteuid() != 0 or shutil.which("setpriv"):
            places.append((closed / "run", "Permission denied"))
        for option in ("--checkpoint", "--resume", "--save"):
            for place, reason in places:
                if option == "--save" and reason == "File name too long":
                    place = place / "weights"
                done = self.as_nobody(program, option, place, closed=closed)
                self.assertEqual(done.returncode, 64, done.stderr)
                self.assertEqual(len(done.stderr.strip().splitlines()), 2, done.stderr)
                if option != "--save":
                    self.assertIn(reason, done.stderr)

    def as_nobody(self, program, *options, closed):
        """Runs a command as a user without access to `closed`; root would have access."""
        as_root = os.geteuid() == 0 and shutil.which("setpriv")
        nobody = ("setpriv", "--reuid=65534", "--clear-groups") if as_root else ()
        closed.chmod(0)
        try:
            return subprocess.run([*nobody, program, *map(str, options)], text=True, timeout=60,
                                  stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        finally:
            closed.chmod(0o700)

    def test_a_label_beyond_the_classes_is_named(self):
        write_fashion_mnist(self.data)
        labels = self.data / "t10k-labels-idx1-ubyte"
        content = bytearray(labels.read_bytes())
        content[8 + 5] = 10
        labels.write_bytes(content)
        self.refuses(PROGRAMS.fashion_mnist, "--data", self.data, "--epochs", 0, code=65,
                     text="the label of sample 5 is 10, but the program has only 10 classes")
        pictures = self.folder / "pictures"
        write_cifar10(pictures)
        batch = pictures / "test_batch.bin"
        content = bytearray(batch.read_bytes())
        content[0] = 10
        batch.write_bytes(content)
        self.refuses(PROGRAMS.cifar10, "--data", pictures, "--epochs", 0, code=65,
                     text="expected a label of 0 to 9, found 10")

    def test_cuda_is_refused_where_there_is_none(self):
        write_fashion_mnist(self.data)
        options = ("--data", self.data, "--steps", 1, "--device", "cuda")
        if run(1, PROGRAMS.fashion_mnist, *options).returncode == 0:
            self.skipTest("there is a CUDA device here")
        for program in (PROGRAMS.fashion_mnist, PROGRAMS.cifar10):
            self.refuses(program, *options, code=78, text="local_device: ")
        self.refuses(PROGRAMS.fashion_mnist, "--device", "tpu", code=64, text="--device")
        self.refuses(PROGRAMS.deterministic, "--device", "cuda", code=64, text="--device")

    def test_a_gpt_learns_on_a_mesh_and_another_one_goes_on(self):
        text = self.folder / "text"
        text.write_text("to be, or not to be, that is the question. " * 50)
        options = ("--text", text, "--width", 32, "--batch", 8, "--length", 24, "--sample", 20,
                   "--checkpoint", self.folder / "gpt")
        losses = []
        for ranks, *mesh in ((2, "--tp", 2, "--steps", 60), (1, "--steps", 61),
                             (4, "--tp", 2, "--dp", 2, "--recompute", "--steps", 62),
                             (4, "--tp", 2, "--cp", 2, "--steps", 63),
                             (2, "--fsdp", "--recompute", "--steps", 64)):
            done = run(ranks, PROGRAMS.gpt, *options, *mesh)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            losses.append(float(re.search(r"loss ([\d.]+) after", done.stdout)[1]))
            self.assertIn("\n[0] You may", done.stdout)  # All write, with whole sequences.
        self.assertLess(losses[0], 1.6)  # From log(256) = 5.5.
        self.assertLess(max(losses), losses[0] + 0.3)
        done = run(2, PROGRAMS.gpt, "--text", self.folder / "none", "--tp", 2)
        self.assertIn("cannot read", done.stderr)
        done = run(2, PROGRAMS.gpt, "--heads", 3, "--width", 66, "--tp", 2)
        self.assertIn("3 heads cannot be divided among 2 tensor parallel ranks", done.stderr)
        done = run(2, PROGRAMS.gpt, "--text", text, "--length", 22, "--cp", 2)
        self.assertIn("sequence length 22 in 2 segments cannot be cut evenly over 2 ranks: 20 or",
                      done.stderr)

    def test_a_gpt_learns_from_tokens_and_goes_on_with_the_next_ones_on_other_ranks(self):
        tokens = self.folder / "train.bin"
        text = "to be, or not to be, that is the question. ".encode() * 20
        header = struct.pack("<3i", 20240520, 1, len(text)) + bytes(1012)  # llm.c's.
        tokens.write_bytes(header + b"".join(struct.pack("<H", byte) for byte in text))
        options = ("--tokens", tokens, "--vocabulary", 200, "--width", 32, "--batch", 8,
                   "--length", 24)

        def loss(ranks, steps, *more):
            done = run(ranks, PROGRAMS.gpt, *options, "--steps", steps, *more)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return float(re.search(r"loss ([\d.]+) after", done.stdout)[1])

        whole = loss(1, 9)  # An epoch has four steps.
        folder = ("--checkpoint", self.folder / "gpt")
        loss(2, 6, *folder)
        self.assertAlmostEqual(loss(1, 9, *folder), whole, delta=1e-4)
        self.assertAlmostEqual(loss(2, 9), whole, delta=1e-4)
        self.assertLess(loss(1, 200), 2.5)  # From log(200) = 5.3.
        self.refuses(PROGRAMS.gpt, *options[:2], "--vocabulary", 100, "--length", 24, code=65,
                     text="expected a token below the vocabulary's size, 100, found 11")
        self.refuses(PROGRAMS.gpt, *options, "--sample", 10, code=64, text="--sample")
        self.refuses(PROGRAMS.gpt, *options, "--raw", code=64, text="llm.c's tokens with a header")

    def test_a_gpt_as_a_pipeline_loses_what_it_does_on_one_rank(self):
        text = self.folder / "text"
        text.write_text("to be, or not to be, that is the question. " * 50)
        first, own = self.folder / "first", self.folder / "own"
        # Initial weights depend on the order of construction, so all continue from the same ones.
        # Adam's steps do not shrink with small gradients, whose rounding then moves a weight. So
        # the steps are short.
        options = ("--text", text, "--width", 32, "--layers", 4, "--batch", 8, "--length", 24,
                   "--sample", 0, "--lr", 1e-4, "--checkpoint", own)

        def loss_of(ranks, steps, *mesh):
            done = run(ranks, PROGRAMS.gpt, *options, "--steps", steps, *mesh)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return float(re.search(rf"loss ([\d.]+) after {steps} steps", done.stdout)[1])

        loss_of(1, 1)
        own.rename(first)
        shutil.copytree(first, own)
        expected = loss_of(1, 6)
        schedules = ("gpipe", "1f1b", "interleaved", "looped_bfs", "zb1p", "zbv")
        runs = [("--dp", 2, "--pp", 2, "--schedule", schedule) for schedule in schedules]
        runs += [("--tp", 2, "--pp", 2), ("--fsdp", "--pp", 2),
                 ("--pp", 4, "--recompute", "--schedule", "zb1p"),
                 ("--fsdp", "--pp", 2, "--recompute", "--schedule", "zbv")]
        for mesh in runs:
            with self.subTest(mesh=mesh):
                shutil.rmtree(own)
                shutil.copytree(first, own)
                self.assertAlmostEqual(loss_of(4, 6, *mesh), expected, delta=1e-6)

    def test_a_gpt_that_is_done_can_be_run_again_and_does_not_go_back(self):
        text = self.folder / "text"
        text.write_text("to be, or not to be, that is the question. " * 50)
        options = ("--text", text, "--width", 32, "--batch", 8, "--length", 24, "--sample", 0,
                   "--checkpoint", self.folder / "gpt")
        first = run(2, PROGRAMS.gpt, *options, "--tp", 2, "--steps", 2)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertNotIn("You may", first.stdout)
        again = run(1, PROGRAMS.gpt, *options, "--steps", 2)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertRegex(again.stderr, r"resumed after step 2, from \S+/gpt/step-0000000002")
        weights = re.compile(r"after 2 steps; weights \w{12}")
        self.assertEqual(weights.search(first.stdout)[0], weights.search(again.stdout)[0])
        self.refuses(PROGRAMS.gpt, *options, "--steps", 1, code=64,
                     text="--steps 1 are fewer than the 2 of")

    def test_a_gpt_is_planned_and_trains_as_the_plan_says(self):
        text = self.folder / "text"
        text.write_text("to be, or not to be, that is the question. " * 50)
        shape = ("--text", text, "--width", 32, "--batch", 8, "--length", 24)
        file = self.folder / "plan.json"
        command = (PROGRAMS.lockstep, "plan", "-n", 2, "--json", file, PROGRAMS.gpt, *shape)
        done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("\nBest: ", done.stdout)
        layouts = json.loads(file.read_text())["layouts"]
        for mesh in ({"dp": 2, "fsdp": False}, {"dp": 2, "fsdp": True}, {"tp": 2}, {"cp": 2},
                     {"pp": 2}):
            found = [one for one in layouts if mesh.items() <= one.items() and one.get("fits")]
            self.assertTrue(found, mesh)
            best = found[0]
            options = ["--dp", best["dp"], "--tp", best["tp"], "--pp", best["pp"],
                       "--cp", best["cp"], *(["--fsdp"] if best["fsdp"] else [])]
            if best["pp"] > 1:
                options += ["--microbatches", best["microbatches"], "--schedule", best["schedule"],
                            "--cut", ",".join(map(str, best["cut"]))]
            done = run(2, PROGRAMS.gpt, *shape, "--sample", 0, "--steps", 2, *options)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("after 2 steps", done.stdout)

    def test_a_gpt_refuses_wrong_options(self):
        for option, value in (("--tp", 0), ("--sample", -5), ("--seed", -1), ("--prompt", ""),
                              ("--lr", "nan")):
            self.refuses(PROGRAMS.gpt, option, value, code=64, text=option)
        self.refuses(PROGRAMS.gpt, "--heads", 3, code=64, text="--width 128 is no multiple of 3")

    def test_a_trained_gpt_generates_the_same_text_on_every_number_of_ranks(self):
        text = self.folder / "text"
        text.write_text("to be, or not to be, that is the question. " * 50)
        shape = ("--width", 32, "--length", 40)
        done = run(2, PROGRAMS.gpt, *shape, "--tp", 2, "--text", text, "--batch", 8, "--steps", 60,
                   "--sample", 0, "--checkpoint", self.folder / "gpt")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        texts = set()
        for ranks in (1, 2):
            done = run(ranks, PROGRAMS.generate, *shape, "--weights", self.folder / "gpt",
                       "--prompt", "to be, or", "--tokens", 30)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertRegex(done.stderr, r"ms a token: .*forward \d+ %")
            texts.add(done.stdout)
        self.assertEqual(len(texts), 1, texts)
        self.assertIn("[0] to be, or", texts.pop())
        done = run(2, PROGRAMS.generate)
        self.assertIn("[0] You may", done.stdout)
        for option, value, message in (("--tokens", 0, "--tokens"), ("--heads", 1, "--heads"),
                                       ("--tokens", 60, "--length is 64"),
                                       ("--prompt", "", "--prompt is empty")):
            self.refuses(PROGRAMS.generate, option, value, code=64, text=message)

    def test_help_has_an_example(self):
        for program in (PROGRAMS.fashion_mnist, PROGRAMS.cifar10, PROGRAMS.deterministic,
                        PROGRAMS.gpt, PROGRAMS.generate, PROGRAMS.large_batch, PROGRAMS.pruning,
                        PROGRAMS.distillation):
            done = subprocess.run([program, "--help"],
                                  text=True,
                                  stdout=subprocess.PIPE,
                                  check=True)
            self.assertIn("lockstep run -n 2", done.stdout)

    def test_without_a_launcher_it_says_what_to_do(self):
        bare = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        done = subprocess.run([PROGRAMS.fashion_mnist], text=True, stderr=subprocess.PIPE, env=bare)
        self.assertEqual(done.returncode, 64)
        self.assertIn("lockstep run -n 2", done.stderr)


def main():
    global PROGRAMS
    parser = argparse.ArgumentParser(description=__doc__)
    for program in ("lockstep", "fashion-mnist", "cifar10", "deterministic", "gpt", "generate",
                    "imagenet", "large-batch", "pruning", "distillation"):
        parser.add_argument(f"--{program}", type=pathlib.Path, required=True)
    PROGRAMS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
