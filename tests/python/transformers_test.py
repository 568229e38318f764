#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/fine_tuning.cpp loads tiny GPT-2 and LLaMA models that transformers has written. It
computes their logits, fine-tunes them with LoRA on two ranks, and writes models that transformers
loads.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
import unittest

from torch_or_skip import torch
from transformers_or_skip import transformers
from safetensors.torch import load_file, save_file

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("--lockstep", required=True)
arguments, rest = parser.parse_known_args()

CLOSE = {"rtol": 0, "atol": 1e-5}


def gpt2():
    config = transformers.GPT2Config(vocab_size=61, n_positions=16, n_embd=24, n_layer=2, n_head=3)
    return transformers.GPT2LMHeadModel(config)


def llama(tied):
    config = transformers.LlamaConfig(
        vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=32, rope_theta=5e4,
        rms_norm_eps=1e-6, tie_word_embeddings=tied)
    return transformers.LlamaForCausalLM(config)


def logits_of(model, tokens):
    with torch.no_grad():
        return model.eval()(tokens).logits


class Models(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        torch.manual_seed(3)
        self.tokens = torch.randint(61, (8, 12))
        save_file({"tokens": self.tokens.to(torch.int32)}, self.root / "tokens.safetensors")

    def models(self):
        yield "gpt2", gpt2()
        yield "llama", llama(tied=False)
        yield "tied llama", llama(tied=True)

    def run_program(self, folder, *options, ranks=1):
        logits = self.root / "logits.safetensors"
        command = [arguments.lockstep, "run", "-n", str(ranks), arguments.program,
                   "--model", folder, "--logits", logits,
                   "--tokens", self.root / "tokens.safetensors", *options]
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        return load_file(logits)["logits"]

    def written(self, model, name, **options):
        folder = self.root / name
        model.save_pretrained(folder, **options)
        return folder

    def test_logits_are_those_of_transformers(self):
        for name, model in self.models():
            for shards, options in (("one", {}), ("several", {"max_shard_size": "8KB"})):
                with self.subTest(name, shards=shards):
                    folder = self.written(model, f"{name} {shards}", **options)
                    has_index = (folder / "model.safetensors.index.json").exists()
                    self.assertEqual(has_index, shards == "several")
                    ours = self.run_program(folder, "--steps", "0")
                    torch.testing.assert_close(ours, logits_of(model, self.tokens[:4]), **CLOSE)

    def test_bfloat16_and_float16_are_converted(self):
        for dtype in (torch.bfloat16, torch.float16):
            for name, model in self.models():
                with self.subTest(name, dtype=dtype):
                    model = model.to(dtype)
                    ours = self.run_program(self.written(model, f"{name} {dtype}"), "--steps", "0")
                    theirs = logits_of(model.to(torch.float32), self.tokens[:4])
                    torch.testing.assert_close(ours, theirs, **CLOSE)

    def test_fine_tuned_models_are_loaded_by_transformers(self):
        for name, model in self.models():
            with self.subTest(name):
                before = logits_of(model, self.tokens[:4])
                out = self.root / f"{name} tuned"
                ours = self.run_program(self.written(model, name), "--steps", "4", "--lr", "0.02",
                                        "--out", out, "--max-shard-bytes", "8000", ranks=2)
                index = json.loads((out / "model.safetensors.index.json").read_text())
                self.assertGreater(len(set(index["weight_map"].values())), 1)
                tuned, report = type(model).from_pretrained(out, output_loading_info=True)
                self.assertFalse(report["missing_keys"], report)
                self.assertFalse(report["unexpected_keys"], report)
                theirs = logits_of(tuned, self.tokens[:4])
                torch.testing.assert_close(ours, theirs, **CLOSE)
                self.assertGreater((theirs - before).abs().max(), 1e-3)
                again = self.run_program(out, "--steps", "0")
                torch.testing.assert_close(again, theirs, **CLOSE)


if __name__ == "__main__":
    unittest.main(argv=[__file__, *rest])
