# SPDX-License-Identifier: Apache-2.0
"""The user's model: how it is found, called and described."""

import copy
import importlib

import torch
from torch import nn


class ExportError(Exception):
    """A model that cannot be exported; the text says why."""


def find(place):
    """Returns the function `MODULE:FUNCTION`."""
    module, separator, function = place.partition(":")
    if not separator or not function:
        raise ExportError(f"{place} is not of the form MODULE:FUNCTION")
    found = getattr(importlib.import_module(module), function, None)
    if not callable(found):
        raise ExportError(f"{module} has no function {function}")
    return found


def example(make, batch):
    """Returns a model in training mode, and its inputs."""
    made = make(batch)
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], nn.Module):
        raise ExportError("make(batch) has to return a module and a tuple of inputs")
    model, inputs = made[0].train(), tuple(made[1])
    for tensor in (*inputs, *model.parameters(), *model.buffers()):
        if not isinstance(tensor, torch.Tensor) or not tensor.is_cpu or tensor.is_sparse:
            raise ExportError("inputs, parameters and buffers have to be dense tensors on the CPU")
    return model, tuple(dense(tensor.detach()) for tensor in inputs)


def dense(tensor):
    """Returns the tensor, or a copy if its elements do not lie side by side."""
    is_dense = torch.ops.aten.is_non_overlapping_and_dense(tensor)
    return tensor if is_dense else tensor.contiguous()


def batch_dims(batch, inputs, larger_inputs):
    """Returns for each input the dimension that grows with the batch; None if there is none.
    `larger_inputs` have one sample more."""
    found = []
    for number, (small, large) in enumerate(zip(inputs, larger_inputs, strict=True)):
        grown = [dim for dim, (a, b) in enumerate(zip(small.shape, large.shape, strict=True))
                 if a != b]
        if len(grown) > 1 or any(small.shape[dim] != batch for dim in grown):
            raise ExportError(
                f"input {number} has the shape {list(small.shape)} for a batch of {batch} and "
                f"{list(large.shape)} for {batch + 1}: --dynamic-batch needs one dimension that "
                "is the batch itself")
        found.append(grown[0] if grown else None)
    if not any(dim is not None for dim in found):
        raise ExportError("--dynamic-batch: no input of make(batch) grows with the batch")
    return found


class Step(nn.Module):
    """The model as aot_export_module() wants it: each parameter and buffer once, and detached
    outputs beside the loss."""

    def __init__(self, model, bf16):
        super().__init__()
        self.hidden = (model,)  # In a tuple it is no submodule.
        self.bf16 = bf16
        self.parameter_names = [name for name, _ in model.named_parameters()]
        self.buffer_names = [name for name, _ in model.named_buffers()]
        self.roles = ["trained" if parameter.requires_grad else "frozen"
                      for parameter in model.parameters()]
        for number, parameter in enumerate(model.parameters()):
            self.register_parameter(f"parameter{number}", parameter)
        for number, buffer in enumerate(model.buffers()):
            self.register_buffer(f"buffer{number}", buffer)

    def state(self):
        """The tensors under the model's names, those with several names under the first."""
        tensors = [*self._parameters.values(), *self._buffers.values()]
        return dict(zip(self.parameter_names + self.buffer_names, tensors, strict=True))

    def forward(self, *inputs):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            result = torch.func.functional_call(self.hidden[0], self.state(), inputs)
        loss, *others = result if isinstance(result, (tuple, list)) else (result,)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ExportError("forward() has to return the loss, a tensor with one element, first")
        return (loss, *(other.detach() for other in others))

    def find_roles(self, inputs):
        """Finds parameters without a part in the loss. Their gradients are not traced."""
        copied = copy.deepcopy(self)
        loss = copied(*inputs)[0]
        if not loss.requires_grad:
            raise ExportError("the loss depends on no parameter that requires a gradient")
        loss.backward()
        for number, parameter in enumerate(copied._parameters.values()):
            if self.roles[number] == "trained" and parameter.grad is None:
                self.roles[number] = "unused"
                self._parameters[f"parameter{number}"].requires_grad_(False)
