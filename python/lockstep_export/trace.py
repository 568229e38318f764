# SPDX-License-Identifier: Apache-2.0
"""One graph of a whole step: parameters, buffers and inputs in; new buffers, loss, outputs and
gradients out."""

import contextlib
import dataclasses
from unittest import mock

import torch
from torch import nn
from torch._dynamo.source import ConstantSource
from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from .model import ExportError


@dataclasses.dataclass
class Graph:
    program: torch.export.ExportedProgram
    updated: list  # Numbers of the buffers that the graph changes, in result order.
    outputs: int   # Number of results between new buffers and gradients: loss and others.
    batch: list | None  # Smallest and largest batch; None: no upper limit.


class Flat(nn.Module):
    """Calls the graph with its constants, which follow `before` other tensors."""

    def __init__(self, graph, before, constants):
        super().__init__()
        self.graph_module = graph
        self.before = before
        self.constant_names = [f"constant{number}" for number in range(len(constants))]
        for name, constant in zip(self.constant_names, constants, strict=True):
            self.register_buffer(name, constant)

    def forward(self, *tensors):
        constants = [getattr(self, name) for name in self.constant_names]
        return self.graph_module(*tensors[:self.before], *constants, *tensors[self.before:])


def trace(step, inputs, dims, training):
    """Returns the graph of the step, in training mode with gradients or in evaluation mode.
    `dims` has the variable dimension of each input, or None."""
    step.set_training(training)
    symbols = ShapeEnv()
    with kernels_of_convolutions_unnoted(symbols):
        module, signature = aot_export_module(
            step, with_symbols(inputs, dims, symbols), trace_joint=training,
            output_loss_index=0 if training else None)
    for node in module.graph.nodes:
        node.meta.clear()
    lifted = [tensor.detach() for tensor in step.state().values()]
    names = step.buffer_names + step.constant_names
    updated = [list(step._buffers).index(name) for name in signature.buffers_to_mutate.values()]
    if changed := [names[number] for number in updated if names[number] in step.constant_names]:
        raise ExportError(f"forward() changes {changed[0]}, a buffer that is not persistent")
    batch = torch.export.Dim("batch", min=2)
    shapes = [None] * len(lifted) + [None if dim is None else {dim: batch} for dim in dims]
    flat = Flat(module, len(lifted), step.constants())
    with torch.no_grad():
        program = torch.export.export(flat, (*lifted, *inputs), strict=False,
                                      dynamic_shapes={"tensors": tuple(shapes)})
    return Graph(program, updated, len(signature.user_outputs), batch_range(program, symbols))


def with_symbols(inputs, dims, symbols):
    """Returns the inputs with one symbol for all batch dimensions."""
    if all(dim is None for dim in dims):
        return inputs
    mode = FakeTensorMode(shape_env=symbols, allow_non_fake_inputs=True)

    def fake(number, tensor, dim):
        sizes = [DimDynamic.DUCK if index == dim else DimDynamic.STATIC
                 for index in range(tensor.dim())]
        return mode.from_tensor(tensor, source=ConstantSource(f"input{number}"),
                                symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))

    return tuple(fake(number, *pair) for number, pair in enumerate(zip(inputs, dims, strict=True)))


@contextlib.contextmanager
def kernels_of_convolutions_unnoted(symbols):
    """Some kernels of a convolution are for certain batch sizes. The selected kernel is not a
    part of the graph, so the selection is not a condition on the batch."""
    select = torch._C._select_conv_backend

    def select_unnoted(*arguments, **keywords):
        with symbols.suppress_guards():
            return select(*arguments, **keywords)

    with mock.patch.object(torch._C, "_select_conv_backend", select_unnoted):
        yield


def batch_range(program, symbols):
    """Returns Graph.batch. Tracing follows one branch of each condition on the batch and records
    the condition in `symbols`. The graph is valid only for batches that meet it.
    Errors: ExportError for a condition other than a minimum or a maximum batch."""
    for guard in symbols.guards:
        if not symbols.bound_sympy(guard.expr).is_singleton():
            condition = str(guard.expr)
            for symbol in guard.expr.free_symbols:
                condition = condition.replace(symbol.name, "batch")
            raise ExportError(f"--dynamic-batch: the model depends on {condition}")
    ranges = [*program.range_constraints.values(), *symbols.var_to_range.values()]
    if not program.range_constraints:
        return None
    lower = max(int(r.lower) for r in ranges)
    uppers = [int(r.upper) for r in ranges if r.upper < 2**40]
    return [lower, min(uppers, default=None)]
