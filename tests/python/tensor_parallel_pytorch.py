# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of tensor_parallel_test.py: does the same as tensor_parallel.cpp, with
torch.distributed.tensor.parallel on Gloo."""

import torch
import torch.nn.functional as F
from plain_safetensors import read
from tensor_parallel_models import MODELS, load, whole_weights
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput,
                                               PrepareModuleOutput, RowwiseParallel,
                                               SequenceParallel, loss_parallel, parallelize_module)

WHOLE = Replicate()
LAYERS = {  # Layer, style, placement of its input and of its output.
    "colwise": ("linear", ColwiseParallel(), WHOLE, Shard(-1)),
    "colwise_gathered": ("linear", ColwiseParallel(output_layouts=Replicate()), WHOLE, WHOLE),
    "colwise_of_sequence": ("linear", ColwiseParallel(input_layouts=Shard(1)), Shard(1), Shard(-1)),
    "rowwise": ("linear", RowwiseParallel(), Shard(-1), WHOLE),
    "rowwise_of_whole": ("linear", RowwiseParallel(input_layouts=Replicate()), WHOLE, WHOLE),
    "rowwise_to_sequence": ("linear", RowwiseParallel(output_layouts=Shard(1)), Shard(-1),
                            Shard(1)),
    "embedding_colwise": ("embedding", ColwiseParallel(), WHOLE, Shard(-1)),
    "embedding_rowwise": ("embedding", RowwiseParallel(input_layouts=Replicate()), WHOLE, WHOLE),
    "layer_norm": ("layer_norm", SequenceParallel(), Shard(1), Shard(1)),
    "rms_norm": ("rms_norm", SequenceParallel(), Shard(1), Shard(1)),
}
PREPARATIONS = [(Shard(1), WHOLE), (WHOLE, Shard(1)), (WHOLE, Shard(-1)), (Shard(1), Shard(2))]


class Rig:
    def __init__(self, inputs, mesh):
        self.inputs, self.mesh, self.results = inputs, mesh, {}

    def placed(self, name, placement):
        tensor = self.inputs[name]
        if placement.is_shard():
            tensor = tensor.chunk(self.mesh.size(), placement.dim)[self.mesh.get_local_rank()]
        return tensor.clone()

    def record(self, name, tensor):
        tensor = tensor.detach()
        self.results[name] = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).clone()

    def record_pass(self, name, x, y, weights):
        """Records both, and the gradient of x when y's are the given weights."""
        y = y.to_local() if isinstance(y, DTensor) else y
        (y * weights).sum().backward()
        self.record(f"{name}.y", y)
        if x.grad is not None:
            self.record(f"{name}.dx", x.grad)


def made(kind):
    return {"linear": lambda: nn.Linear(12, 24), "embedding": lambda: nn.Embedding(11, 12),
            "layer_norm": lambda: nn.LayerNorm(12), "rms_norm": lambda: nn.RMSNorm(12)}[kind]()


def run_layer(rig, name, kind, style, into, out):
    layer = made(kind)
    layer.load_state_dict({key.removeprefix(f"{kind}."): tensor
                           for key, tensor in rig.inputs.items() if key.startswith(f"{kind}.")})
    layer = parallelize_module(layer, rig.mesh, style)
    x = rig.placed("tokens" if kind == "embedding" else "x", into)
    x.requires_grad_(x.is_floating_point())
    y = layer(x)
    rig.record_pass(name, x, y, rig.placed("w24" if kind == "linear" else "w12", out))
    for key, parameter in layer.named_parameters():
        rig.record(f"{name}.{key}", parameter)
        rig.record(f"{name}.{key}.grad", parameter.grad.redistribute(
            placements=parameter.placements))


def run_cross_entropy(rig, reduction, ignored):
    logits = distribute_tensor(rig.inputs["logits"], rig.mesh, [Shard(-1)]).requires_grad_()
    with loss_parallel():
        loss = F.cross_entropy(logits, rig.inputs["classes"], reduction=reduction,
                               ignore_index=ignored)
        (loss * 3).sum().backward()
    rig.record(f"cross_entropy.{reduction}.{ignored}", loss)
    rig.record(f"cross_entropy.{reduction}.{ignored}.grad", logits.grad)


class Plain(nn.Module):
    def forward(self, x):
        return x * 2


def run_preparation(rig, i, before, after):
    styles = {
        "prepare_input": PrepareModuleInput(input_layouts=before, desired_input_layouts=after,
                                            use_local_output=True),
        "prepare_output": PrepareModuleOutput(output_layouts=before, desired_output_layouts=after)}
    for name, style in styles.items():
        x = rig.placed("x", before).requires_grad_()
        y = parallelize_module(Plain(), rig.mesh, style)(x)
        rig.record_pass(f"{name}.{i}", x, y, rig.placed("w12", after))


def train(rig, name):
    model = MODELS[name]().double()
    load(model, {key.removeprefix(f"{name}."): tensor for key, tensor in rig.inputs.items()
                 if key.startswith(f"{name}.")})
    parallelize_module(model, rig.mesh, model.plan)
    # Not all parameters are DTensors, and a foreach step takes no mixture.
    adamw = torch.optim.AdamW(model.parameters(), 1e-2, foreach=False)
    losses = []
    for text, images, classes in zip(rig.inputs["texts"], rig.inputs["images"],
                                     rig.inputs["image_classes"]):
        adamw.zero_grad()
        if name == "vit":
            loss = F.cross_entropy(model(images), classes)
            loss.backward()
        else:
            logits = model(text[:, :-1])
            with loss_parallel():
                loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
                loss.backward()
        losses.append(loss.full_tensor() if isinstance(loss, DTensor) else loss)
        adamw.step()
    rig.record(f"{name}.losses", torch.stack(losses))
    for key, tensor in whole_weights(model).items():
        rig.record(f"{name}.{key}", tensor)


def run_rank(rank, folder, sizes):
    inputs = read(folder / "inputs", {})
    for tp in sizes:
        rig = Rig(inputs, DeviceMesh("cpu", list(range(tp)), mesh_dim_names=("tp",)))
        if rank >= tp:
            continue
        for name, case in LAYERS.items():
            run_layer(rig, name, *case)
        for reduction in ("mean", "sum", "none"):
            for ignored in (-100, 1):
                run_cross_entropy(rig, reduction, ignored)
        for i, (before, after) in enumerate(PREPARATIONS):
            run_preparation(rig, i, before, after)
        for name in MODELS if tp == 2 else ():
            train(rig, name)
        torch.save(rig.results, folder / f"theirs.{tp}.{rank}")
