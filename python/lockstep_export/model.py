# SPDX-License-Identifier: Apache-2.0
"""Finds, calls and describes the user's model."""

import copy
import importlib

import torch
from torch import nn


class ExportError(Exception):
    """A model that cannot be exported. The text has the reason."""


def find(place):
    """Returns the function `MODULE:FUNCTION`."""
    module, separator, function = place.partition(":")
    if not separator or not function:
        raise ExportError(f"{place} is not of the form MODULE:FUNCTION")
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise ExportError(f"{module} cannot be imported: {error}") from error
    if not callable(found):
        raise ExportError(f"{module} has no function {function}")
    return found


def example(make, batch):
    """Returns a model and its inputs."""
    made = make(batch)
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], nn.Module):
        raise ExportError("make(batch) has to return a module and a tuple of inputs")
    model, inputs = made[0], tuple(made[1])
    if not model.training:
        raise ExportError("make(batch) has to return a model in training mode; submodules may be "
                          "in evaluation mode")
    for tensor in (*inputs, *model.parameters(), *model.buffers()):
        if not isinstance(tensor, torch.Tensor) or not tensor.is_cpu or tensor.is_sparse:
            raise ExportError("inputs, parameters and buffers have to be dense tensors on the CPU")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not is_dense(tensor):
            raise ExportError(f"{name} is a view with gaps or overlaps: make it contiguous()")
    return model, tuple(tensor.detach() if is_dense(tensor) else tensor.detach().contiguous()
                        for tensor in inputs)


def is_dense(tensor):
    """Whether the elements are contiguous in memory, in any order."""
    return torch.ops.aten.is_non_overlapping_and_dense(tensor)


def batch_dims(batch, inputs, larger_inputs):
    """Returns for each input the dimension that grows with the batch; None if there is none.
    `larger_inputs` have one more sample."""
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
    """The model as aot_export_module() needs it: each parameter and buffer once, and detached
    outputs beside the loss. Buffers that are not persistent, and thus not in the model's state,
    come last."""

    def __init__(self, model, bf16):
        super().__init__()
        self.hidden = (model,)  # A tuple prevents registration as a submodule.
        self.bf16 = bf16
        self.modes = [module.training for module in model.modules()]
        self.parameter_names = [name for name, _ in model.named_parameters()]
        buffers, persistent = dict(model.named_buffers()), model.state_dict().keys()
        self.buffer_names = [name for name in buffers if name in persistent]
        self.constant_names = [name for name in buffers if name not in persistent]
        self.roles = ["trained" if parameter.requires_grad else "frozen"
                      for parameter in model.parameters()]
        for number, parameter in enumerate(model.parameters()):
            self.register_parameter(f"parameter{number}", parameter)
        for number, name in enumerate(self.buffer_names + self.constant_names):
            self.register_buffer(f"buffer{number}", buffers[name])

    def set_training(self, training):
        """Sets the mode: for training, that of make(), which may differ between submodules."""
        for module, mode in zip(self.hidden[0].modules(), self.modes, strict=True):
            module.training = training and mode

    def tensors(self):
        """The tensors under the model's names; tensors with several names under the first one."""
        names = self.parameter_names + self.buffer_names + self.constant_names
        tensors = [*self._parameters.values(), *self._buffers.values()]
        return dict(zip(names, tensors, strict=True))

    def state(self):
        """tensors() without constants, as in files of weights."""
        return {name: tensor for name, tensor in self.tensors().items()
                if name not in self.constant_names}

    def constants(self):
        return [self.tensors()[name] for name in self.constant_names]

    def forward(self, *inputs):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            result = torch.func.functional_call(self.hidden[0], self.tensors(), inputs)
        loss, *others = result if isinstance(result, (tuple, list)) else (result,)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ExportError("forward() has to return the loss, a tensor with one element, first")
        if not all(isinstance(other, torch.Tensor) for other in others):
            raise ExportError("forward() has to return tensors, and nothing else, after the loss")
        return (loss, *(other.detach() for other in others))

    def find_roles(self, inputs):
        """Finds parameters that do not contribute to the loss. Their gradients are not traced."""
        copied = copy.deepcopy(self)
        copied.set_training(True)
        loss = copied(*inputs)[0]
        if not loss.requires_grad:
            raise ExportError("the loss depends on no parameter that requires a gradient")
        loss.backward()
        for number, parameter in enumerate(copied._parameters.values()):
            if self.roles[number] == "trained" and parameter.grad is None:
                self.roles[number] = "unused"
                self._parameters[f"parameter{number}"].requires_grad_(False)
