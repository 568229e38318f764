#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The models of examples/ load weights under the names of torchvision, Hugging Face and nanoGPT,
each tensor into the right place. The values are random, the files written by Python.
"""

import hashlib
import pathlib
import subprocess
import sys
import tempfile

from plain_safetensors import bytes_of, write
from torch_or_skip import torch

try:
    from safetensors.torch import save_file
except ImportError:
    def save_file(tensors, file, metadata):
        write(file, tensors, metadata)

NAMES = pathlib.Path(__file__).resolve().parent / "torchvision_names"
WIDTH, LAYERS, VOCABULARY, BLOCK = 16, 2, 50, 12  # Sizes in published_weights.cpp.


def digest(tensor):
    line = f"{str(tensor.dtype)[6:]} {list(tensor.shape)}\n"
    return hashlib.sha256(line.encode() + bytes_of(tensor)).hexdigest()


def random(dtype, shape):
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(9, shape)


def torchvision(model):
    tensors = {}
    for line in (NAMES / f"{model}.txt").read_text().splitlines()[1:]:
        name, dtype, shape = line.split(maxsplit=2)
        tensors[name] = random(getattr(torch, dtype),
                               [int(size) for size in shape[1:-1].split(",") if size])
    return tensors


def gpt(prefix):
    """nanoGPT's layout: weights of linear layers are [out, in]."""
    tensors = {
        "wte.weight": torch.randn(VOCABULARY, WIDTH), "wpe.weight": torch.randn(BLOCK, WIDTH)
    }
    for layer in (f"h.{i}" for i in range(LAYERS)):
        for name in ("ln_1", "ln_2"):
            tensors |= {f"{layer}.{name}.{kind}": torch.randn(WIDTH) for kind in ("weight", "bias")}
        for name, out, into in (("attn.c_attn", 3, 1), ("attn.c_proj", 1, 1), ("mlp.c_fc", 4, 1),
                                ("mlp.c_proj", 1, 4)):
            tensors[f"{layer}.{name}.weight"] = torch.randn(out * WIDTH, into * WIDTH)
            tensors[f"{layer}.{name}.bias"] = torch.randn(out * WIDTH)
    tensors |= {"ln_f.weight": torch.randn(WIDTH), "ln_f.bias": torch.randn(WIDTH)}
    return {prefix + name: tensor for name, tensor in tensors.items()}


def vit():
    """torchvision's VisionTransformer of that size, for images of 8 pixels, patches of 4 and 10
    classes: names and shapes as in its vision_transformer.py."""
    shapes = {"class_token": (1, 1, WIDTH), "conv_proj.weight": (WIDTH, 3, 4, 4),
              "conv_proj.bias": (WIDTH,), "encoder.pos_embedding": (1, 5, WIDTH),
              "encoder.ln.weight": (WIDTH,), "encoder.ln.bias": (WIDTH,),
              "heads.head.weight": (10, WIDTH), "heads.head.bias": (10,)}
    for layer in (f"encoder.layers.encoder_layer_{i}" for i in range(LAYERS)):
        for name in ("ln_1", "ln_2"):
            shapes |= {f"{layer}.{name}.{kind}": (WIDTH,) for kind in ("weight", "bias")}
        for name, out, into in (("self_attention.in_proj_", 3, 1), ("mlp.0.", 2, 1),
                                ("self_attention.out_proj.", 1, 1), ("mlp.3.", 1, 2)):
            shapes[f"{layer}.{name}weight"] = (out * WIDTH, into * WIDTH)
            shapes[f"{layer}.{name}bias"] = (out * WIDTH,)
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def of_hugging_face(ours, prefix):
    """Returns our tensors in Conv1D's layout, and GPT2LMHeadModel's additional ones."""
    theirs = {}
    for name, tensor in ours.items():
        of_conv1d = ".c_" in name and name.endswith(".weight")
        name = name.replace("transformer.", prefix)
        theirs[name] = tensor.t().contiguous() if of_conv1d else tensor
    mask = torch.ones(1, 1, BLOCK, BLOCK).tril()
    for i in range(LAYERS):
        theirs[f"{prefix}h.{i}.attn.bias"] = mask.bool().clone() if prefix else mask.clone()
        theirs[f"{prefix}h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    return theirs


def loaded(program, model, file):
    done = subprocess.run([program, model, file], stdout=subprocess.PIPE, text=True, check=True)
    return dict(line.split() for line in done.stdout.splitlines())


def main():
    torch.manual_seed(1)
    ours = gpt("transformer.")
    tied = {"lm_head.weight": ours["transformer.wte.weight"].clone()}
    cases = [(model, torchvision(model), None) for model in ("resnet18", "efficientnet_b0")]
    cases += [("nanogpt", ours | tied, ours),
              ("gpt2", of_hugging_face(ours, "transformer.") | tied, ours),
              ("gpt2", of_hugging_face(ours, ""), ours)]
    theirs = vit()
    cases.append(("vit", theirs, {name.replace("in_proj_", "in_proj."): tensor
                                  for name, tensor in theirs.items()}))
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "theirs.safetensors")
        for model, theirs, expected in cases:
            save_file(theirs, file, {"format": "pt"})
            found = loaded(sys.argv[1], model, file)
            expected = {name: digest(tensor) for name, tensor in (expected or theirs).items()}
            differences = sorted(set(found.items()) ^ set(expected.items()))
            assert found == expected, f"{model}: {differences[:4]}"
            print(model, len(theirs), "tensors of theirs,", len(found), "of ours")


main()
