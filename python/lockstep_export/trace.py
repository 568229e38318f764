# SPDX-License-Identifier: Apache-2.0
"""One graph of a whole step: parameters, buffers and inputs in; new buffers, loss, outputs and
gradients out."""

import dataclasses

import torch
from torch import nn
from torch._dynamo.source import ConstantSource
from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext


@dataclasses.dataclass
class Graph:
    program: torch.export.ExportedProgram
    updated: list  # Numbers of the buffers that the graph changes, in the order of its results.
    outputs: int   # Results between the new buffers and the gradients: the loss and others.


class Flat(nn.Module):
    def __init__(self, graph):
        super().__init__()
        self.graph_module = graph

    def forward(self, *tensors):
        return self.graph_module(*tensors)


def trace(step, inputs, dims, training):
    """Returns the graph of the step in training mode, with gradients, or in evaluation mode.
    `dims` has the dimension of each input that is not fixed, or None."""
    step.hidden[0].train(training)
    module, signature = aot_export_module(
        step, with_symbols(inputs, dims), trace_joint=training,
        output_loss_index=0 if training else None)
    for node in module.graph.nodes:
        node.meta.clear()
    lifted = [tensor.detach() for tensor in (*step.parameters(), *step.buffers())]
    batch = torch.export.Dim("batch", min=2)
    shapes = [None] * len(lifted) + [None if dim is None else {dim: batch} for dim in dims]
    with torch.no_grad():
        program = torch.export.export(Flat(module), (*lifted, *inputs), strict=False,
                                      dynamic_shapes={"tensors": tuple(shapes)})
    buffers = list(step._buffers)
    updated = [buffers.index(name) for name in signature.buffers_to_mutate.values()]
    return Graph(program, updated, len(signature.user_outputs))


def with_symbols(inputs, dims):
    """Returns the inputs with one symbol for all dimensions that are the batch."""
    if all(dim is None for dim in dims):
        return inputs
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)

    def fake(number, tensor, dim):
        sizes = [DimDynamic.DUCK if index == dim else DimDynamic.STATIC
                 for index in range(tensor.dim())]
        return mode.from_tensor(tensor, source=ConstantSource(f"input{number}"),
                                symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))

    return tuple(fake(number, *pair) for number, pair in enumerate(zip(inputs, dims, strict=True)))


def batch_range(program):
    """Returns the smallest and the largest batch for which the graph is right; the largest may be
    None, for no limit."""
    ranges = list(program.range_constraints.values())
    if not ranges:
        return None
    lower = max(int(r.lower) for r in ranges)
    uppers = [int(r.upper) for r in ranges if r.upper < 2**40]
    return [lower, min(uppers, default=None)]
