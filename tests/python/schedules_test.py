#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lockstep's learning rate schedules have the rates and momenta of Python's, bit for bit, in 10,000
steps. There are three param groups, of which the program edits one. In the middle, Lockstep's
resume from Python's state_dict(), and Python's from Lockstep's. Their states are equal, except for
members that one side alone has.

schedules_test.py SCHEDULE_TRACE
"""

import collections
import pathlib
import subprocess
import sys
import tempfile
import warnings

from plain_safetensors import read
from torch_or_skip import torch
from torch.optim.lr_scheduler import (
    ChainedScheduler, ConstantLR, CosineAnnealingLR, CosineAnnealingWarmRestarts, CyclicLR,
    ExponentialLR, LambdaLR, LinearLR, MultiplicativeLR, MultiStepLR, OneCycleLR, PolynomialLR,
    ReduceLROnPlateau, SequentialLR, StepLR)
from torch.optim.swa_utils import SWALR

ALL_STEPS, MIDDLE, EDITED, GROUPS = 10_000, 5_000, 777, 3
RATES = (0.1, 0.05, 0.003)

# Lockstep saves these with the schedule, Python with the param groups.
OF_GROUPS = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"}
# Python has no ScaledLearningRate, and lists of momenta only where they cycle.
OF_LOCKSTEP = {"global_batch", "batch_factor", "base_momentums", "max_momentums"}
# Only Python's state_dict() has these: they follow from the constructor's arguments.
OF_PYTHON = {"_get_lr_called_within_step", "_is_initial", "lr_lambdas", "_scale_fn_custom",
             "use_beta1", "mode_worse", "default_min_lr", "start_lr", "end_lr",
             "start_momentum", "end_momentum"}


def warm_up_and_cosine(o):
    return [LinearLR(o, start_factor=1e-3, total_iters=50), CosineAnnealingLR(o, T_max=900)]


def constant_and_exponential(o):
    return [ConstantLR(o, factor=0.2, total_iters=350), ExponentialLR(o, gamma=0.999)]


def all_in_sequence(o):
    return SequentialLR(o, [
        *constant_and_exponential(o),
        MultiStepLR(o, [0, 7, 7, 90], gamma=0.7),
        StepLR(o, 40, gamma=0.9),
        PolynomialLR(o, total_iters=500, power=0.5),
        LinearLR(o, end_factor=0.9, total_iters=600),
        MultiplicativeLR(o, lambda e: 1.25 if e % 2 == 0 else 0.75),
        CosineAnnealingLR(o, T_max=77, eta_min=1e-4),
        CosineAnnealingWarmRestarts(o, 10, 3),
        SWALR(o, 0.03, anneal_epochs=100),
        LambdaLR(o, lambda e: 1 / (1 + 0.25 * e)),
        CyclicLR(o, 0.01, 0.3, step_size_up=30),
        OneCycleLR(o, 0.4, total_steps=2000),
    ], list(range(800, 9601, 800)))


def sequence_in_sequence(o):
    first = SequentialLR(o, warm_up_and_cosine(o), [50])
    return SequentialLR(o, [first, PolynomialLR(o, total_iters=4000)], [700])


def chain_with_sequence(o):
    sequence = SequentialLR(o, warm_up_and_cosine(o), [50])
    return ChainedScheduler([sequence, StepLR(o, 1000, gamma=0.5)])


def sequence_with_chain(o):
    chain = ChainedScheduler(constant_and_exponential(o))
    return SequentialLR(o, [chain, CosineAnnealingLR(o, T_max=3000)], [400])


def scaled(o):
    for group in o.param_groups:
        group["lr"] *= 3.0
    return LinearLR(o, start_factor=1 / 3.0, total_iters=6000)


CASES = {
    "lambda": lambda o: LambdaLR(o, [lambda e: 1 / (1 + 0.01 * e), lambda e: 0.999**e,
                                     lambda e: float(e % 7)]),
    "multiplicative": lambda o: MultiplicativeLR(o, lambda e: 1.001 if e % 100 < 50 else 0.998),
    "step": lambda o: StepLR(o, 300, 0.9),
    "multi_step": lambda o: MultiStepLR(o, [9000, 10, 500, 500, 500, 4999, 6000], gamma=0.3),
    "constant": lambda o: ConstantLR(o, 0.7, 6000),
    "constant_defaults": ConstantLR,
    "linear": lambda o: LinearLR(o, 0.001, 0.7, 7000),
    "linear_defaults": LinearLR,
    "exponential": lambda o: ExponentialLR(o, 0.9993),
    "polynomial": lambda o: PolynomialLR(o, 9000, 1.7),
    "cosine": lambda o: CosineAnnealingLR(o, 1700, 1e-5),
    "cosine_short": lambda o: CosineAnnealingLR(o, 3),
    "restarts": lambda o: CosineAnnealingWarmRestarts(o, 100, 2, 1e-4),
    "restarts_even": lambda o: CosineAnnealingWarmRestarts(o, 77),
    "swa": lambda o: SWALR(o, [0.01, 0.02, 0.03], anneal_epochs=6000),
    "swa_linear": lambda o: SWALR(o, 0.2, anneal_epochs=50, anneal_strategy="linear"),
    "swa_at_once": lambda o: SWALR(o, 0.2, anneal_epochs=0),
    "cyclic": lambda o: CyclicLR(o, [0.001, 0.002, 0.003], [0.1, 0.3, 0.7], step_size_up=150,
                                 step_size_down=70),
    "cyclic_adam": lambda o: CyclicLR(o, 0.001, 0.6, step_size_up=333, mode="triangular2",
                                      base_momentum=0.7, max_momentum=[0.9, 0.95, 0.99]),
    "cyclic_exp": lambda o: CyclicLR(o, 0.001, 0.6, mode="exp_range", gamma=0.9995),
    "cyclic_own": lambda o: CyclicLR(o, 0.001, 0.6, step_size_up=90,
                                     scale_fn=lambda x: 1 / (1 + 0.1 * x),
                                     scale_mode="iterations", cycle_momentum=False),
    "one_cycle": lambda o: OneCycleLR(o, [0.1, 0.2, 0.3], epochs=100, steps_per_epoch=100),
    "one_cycle_adam": lambda o: OneCycleLR(o, 0.3, total_steps=10_007, pct_start=0.37,
                                           anneal_strategy="linear", div_factor=7,
                                           final_div_factor=130, three_phase=True),
    "one_cycle_rates": lambda o: OneCycleLR(o, 0.3, total_steps=10_000, cycle_momentum=False,
                                            three_phase=True),
    "sequence": lambda o: SequentialLR(o, warm_up_and_cosine(o), [50]),
    "sequence_from_second": lambda o: SequentialLR(o, warm_up_and_cosine(o), [0]),
    "sequence_of_all_adam": all_in_sequence,
    "sequence_in_sequence": sequence_in_sequence,
    "chain": lambda o: ChainedScheduler(constant_and_exponential(o)),
    "chain_with_sequence": chain_with_sequence,
    "sequence_with_chain": sequence_with_chain,
    "plateau": ReduceLROnPlateau,
    "plateau_of_maxima": lambda o: ReduceLROnPlateau(
        o, mode="max", factor=0.9, patience=100, threshold=0.01, threshold_mode="abs",
        cooldown=30, min_lr=[1e-4, 1e-3, 1e-5], eps=1e-4),
    "plateau_relative": lambda o: ReduceLROnPlateau(o, mode="max", factor=0.99, patience=5),
    "plateau_absolute": lambda o: ReduceLROnPlateau(o, factor=0.99, patience=7,
                                                    threshold_mode="abs"),
    "scaled": scaled,
}


# --- Runs ----------------------------------------------------------------------------------------


class Training:
    """Python's side: what schedule_trace.cpp does."""

    def __init__(self, name):
        groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": lr}
                  for lr in RATES]
        self.is_adam = name.endswith("_adam")
        self.optimizer = torch.optim.Adam(groups) if self.is_adam else torch.optim.SGD(groups)
        self.schedule = CASES[name](self.optimizer)

    def values(self):
        groups = self.optimizer.param_groups
        return ([group["lr"] for group in groups] +
                [group["betas"][0] if self.is_adam else group["momentum"] for group in groups])

    def set_values(self, values):
        for i, group in enumerate(self.optimizer.param_groups):
            group["lr"] = values[i]
            if self.is_adam:
                group["betas"] = (values[GROUPS + i], 0.999)
            else:
                group["momentum"] = values[GROUPS + i]

    def step(self, i):
        if i == EDITED:
            self.optimizer.param_groups[1]["lr"] *= 0.5
        if isinstance(self.schedule, ReduceLROnPlateau):
            self.schedule.step(1.0 / (1 + i % 3000) + (i * 7919 % 1000) / 4000.0)
        else:
            self.schedule.step()
        return self.values()


# --- States --------------------------------------------------------------------------------------


def flat(state, prefix=""):
    """The members of a state_dict() under their names in Lockstep."""
    values = {}
    for name, value in state.items():
        if isinstance(value, collections.Counter):
            values[prefix + name] = sorted(value.elements())
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], dict):
            for i, each in enumerate(value):
                values |= flat(each, f"{prefix}{name}.{i}.")
        elif value is not None and value != [None] * GROUPS:
            values[prefix + name] = value
    return values


def line_of(value):
    if isinstance(value, bool):
        return f"b {int(value)}"
    if isinstance(value, int):
        return f"i {value}"
    if isinstance(value, float):
        return f"d {value.hex()}"
    if isinstance(value, str):
        return f"s {value}"
    return " ".join(["v", *[float(each).hex() for each in value]])


def value_of(kind, words):
    if kind == "v":
        return [float.fromhex(word) for word in words]
    (word,) = words
    return {"b": lambda: word == "1", "i": lambda: int(word), "d": lambda: float.fromhex(word),
            "s": lambda: word}[kind]()


def read_states(file):
    states = collections.defaultdict(dict)
    for line in file.read_text().splitlines():
        case, name, kind, *words = line.split(" ")
        states[case][name] = value_of(kind, words)
    return states


def compare_states(name, ours, theirs):
    def is_excepted(member):
        start, last = member[:member.rfind(".") + 1], member.split(".")[-1]
        is_composite = any(each.startswith(f"{start}_schedulers.") for each in theirs)
        # Python does not count the steps of a CosineAnnealingWarmRestarts, and counts those of a
        # schedule made of others only as a child. A ChainedScheduler of Python has no last_epoch.
        return ((last == "_step_count" and (is_composite or f"{start}T_cur" in theirs)) or
                (last == "last_epoch" and is_composite and member not in theirs) or
                (last in OF_GROUPS | OF_LOCKSTEP and member not in theirs) or
                (last in OF_PYTHON and member not in ours))

    for member in sorted(ours.keys() | theirs.keys()):
        mine, other = (None if each is None else list(each) if isinstance(each, tuple) else each
                       for each in (ours.get(member), theirs.get(member)))
        assert mine == other or is_excepted(member), (
            f"{name}: the state has {member} = {mine}, and Python's {other}")


def filled(template, values, prefix=""):
    """A state_dict() like `template` with Lockstep's values, which are removed from `values`."""
    state = {}
    for name, value in template.items():
        if isinstance(value, collections.Counter):
            state[name] = collections.Counter(map(int, values.pop(prefix + name)))
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], dict):
            state[name] = [filled(each, values, f"{prefix}{name}.{i}.")
                           for i, each in enumerate(value)]
        elif name in OF_PYTHON or (name == "_step_count" and "_schedulers" in template):
            state[name] = value  # The steps of a SequentialLR in another one stay 0.
        else:
            state[name] = values.pop(prefix + name)
    return state


# --- Comparisons ---------------------------------------------------------------------------------


def rows(tensor):
    return tensor.view(-1, 2 * GROUPS).tolist()


def compare(what, ours, theirs, first):
    assert len(ours) == len(theirs), f"{what}: {len(ours)} steps are not {len(theirs)}"
    for step, (mine, other) in enumerate(zip(ours, theirs), first):
        assert mine == other, f"{what}: step {step} has {mine}, and Python {other}"


def resumed_from(name, values, at_middle):
    training = Training(name)
    training.schedule.load_state_dict(filled(training.schedule.state_dict(), values))
    left = {each.split(".")[-1] for each in values} - OF_GROUPS - OF_LOCKSTEP
    if isinstance(training.schedule, (ChainedScheduler, SequentialLR)):
        left -= {"last_epoch"}  # That of a ChainedScheduler.
    assert not left, f"{name}: Python knows nothing of {left}"
    training.set_values(at_middle)
    return [training.step(i) for i in range(MIDDLE + 1, ALL_STEPS + 1)]


def main():
    warnings.simplefilter("ignore")  # There are no steps of the optimizer.
    traces, their_states, lines = {}, {}, []
    for name in CASES:
        training = Training(name)
        traces[name] = [training.values()]
        for i in range(1, ALL_STEPS + 1):
            traces[name].append(training.step(i))
            if i == MIDDLE:
                their_states[name] = flat(training.schedule.state_dict())
                state = their_states[name] | {"groups": training.values()}
                lines += [f"{name} {member} {line_of(value)}" for member, value in state.items()]
        assert training.values()[:GROUPS] != list(RATES), f"{name}: no rate has changed"
    with tempfile.TemporaryDirectory() as folder:
        states, result, our_states = (pathlib.Path(folder) / each for each in "abc")
        states.write_text("\n".join(lines) + "\n")
        subprocess.run([sys.argv[1], states, result, our_states], check=True)
        ours, our_states = read(result, {}), read_states(our_states)
    assert len(ours) == 2 * len(CASES), "the two sides have other cases"
    for name, theirs in traces.items():
        compare(name, rows(ours[name]), theirs, 0)
        compare_states(name, our_states[name], their_states[name])
        rest = theirs[MIDDLE + 1:]
        compare(f"{name}, resumed from Python", rows(ours[f"{name}.resumed"]), rest, MIDDLE + 1)
        compare(f"{name}, resumed by Python", rest,
                resumed_from(name, our_states[name], theirs[MIDDLE]), MIDDLE + 1)
    print(f"{len(traces)} schedules have Python's rates in {ALL_STEPS} steps, and its states")


if __name__ == "__main__":
    main()
