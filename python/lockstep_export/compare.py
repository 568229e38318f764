# SPDX-License-Identifier: Apache-2.0
"""Compares one run of the compiled step with the eager model: loss, outputs, buffers, gradients."""

import copy

import torch

from .model import ExportError

# Largest distance between compiled and eager results, relative to the result. Rounding may change
# an activation's sign, or a maximum's position: gradients then jump. With one input in six, those
# of ResNet-18 in float32 differ from float64 by 0.55 %.
TOLERANCE = {"loss": 1e-4, "output": 1e-4, "buffer": 1e-4, "gradient": 0.02}
# In bfloat16, both differ from float32 by rounding. The compiled step may differ by this many times
# as much as the eager one, whose error for a single number may be small by chance.
BF16_FACTOR = 3
BF16_TOLERANCE = 0.02
# Results that are zero except for rounding are compared with this share of all of their kind.
FLOOR = 0.01
SEED = 1


def eager(step, inputs, training):
    """Returns the results of the model by name."""
    step = copy.deepcopy(step)
    step.set_training(training)
    torch.manual_seed(SEED)
    with torch.set_grad_enabled(training):
        loss, *others = step(*inputs)
    results = {"loss": {"loss": loss.detach()},
               "output": {str(number): other for number, other in enumerate(others)},
               "buffer": dict(step._buffers), "gradient": {}}
    if training:
        loss.backward()
        results["gradient"] = {name: parameter.grad for name, parameter in step._parameters.items()
                               if parameter.grad is not None}
    return results


def compiled(run, step, graph, inputs, training):
    """Returns the results of `run`, which calls compiled code, by name."""
    torch.manual_seed(SEED)
    lifted = [tensor.detach().clone() for tensor in step.state().values()]
    results = run([*lifted, *inputs])
    buffers = dict(step._buffers)
    names = list(buffers)
    buffers |= {names[number]: value for number, value in zip(graph.updated, results)}
    results = results[len(graph.updated):]
    loss, *others = results[:graph.outputs]
    trained = [name for name, parameter in step._parameters.items() if parameter.requires_grad]
    return {"loss": {"loss": loss},
            "output": {str(number): other for number, other in enumerate(others)},
            "buffer": buffers,
            "gradient": dict(zip(trained, results[graph.outputs:])) if training else {}}


def size(tensors):
    return sum(tensor.double().square().sum().item() for tensor in tensors) ** 0.5


def differences(found, expected, exact, tolerance, names):
    """Returns a line for each wrong result. `exact` is `expected` without rounding to bfloat16."""
    lines = []
    for kind, results in expected.items():
        if results.keys() != found[kind].keys():
            lines.append(f"{kind}s: {sorted(found[kind])} instead of {sorted(results)}")
            continue
        whole = size(exact[kind].values())
        for name, result in results.items():
            distance = size([found[kind][name].double() - exact[kind][name].double()])
            rounding = size([result.double() - exact[kind][name].double()])
            allowed = BF16_FACTOR * rounding + tolerance[kind] * max(size([exact[kind][name]]),
                                                                     FLOOR * whole)
            if found[kind][name].shape != result.shape or not distance <= allowed:
                lines.append(f"{kind} {names.get(name, name)} differs by {distance:.2e}, where "
                             f"{allowed:.2e} is rounding")
    return lines


def check(run, step, graph, inputs, training):
    """Errors: ExportError if the compiled code's results differ from the model's."""
    expected = exact = eager(step, inputs, training)
    tolerance = TOLERANCE
    if step.bf16:
        tolerance = dict.fromkeys(TOLERANCE, BF16_TOLERANCE)
        precise = copy.copy(step)
        precise.bf16 = False
        exact = eager(precise, inputs, training)
    try:
        found = compiled(run, step, graph, inputs, training)
    except RuntimeError as error:
        raise ExportError(f"the compiled step fails, where the model does not: {error}") from error
    kinds = {"parameter": step.parameter_names,
             "buffer": step.buffer_names + step.constant_names}
    names = {f"{kind}{number}": name for kind, names in kinds.items()
             for number, name in enumerate(names)}
    lines = differences(found, expected, exact, tolerance, names)
    if lines:
        raise ExportError("the compiled step differs from the model:\n  " + "\n  ".join(lines[:10]))
