# SPDX-License-Identifier: Apache-2.0
"""Accelerate uses Gloo for CPUs, or the group that the program has created."""

import framework
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import broadcast_object_list, gather_object
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def train(backend):
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    both = [torch.cat(parts) for parts in zip(framework.samples(0), framework.samples(1))]
    model = framework.own_model()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        DataLoader(TensorDataset(*both), batch_size=8, shuffle=False))
    losses, predicted = [], []
    for inputs, classes in loader:
        with accelerator.accumulate(model):
            scores = model(inputs)
            loss = cross_entropy(scores, classes)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean"))
        predicted.append(accelerator.gather_for_metrics((scores.argmax(1), classes))[0])
    names = gather_object([f"rank {PartialState().process_index}"])
    assert names == ["rank 0", "rank 1"]
    box = [names if accelerator.is_main_process else None]
    assert broadcast_object_list(box) == [names]
    return framework.result(losses, accelerator.unwrap_model(model)) | {
        "predicted": torch.cat(predicted)}


framework.run(train, "group")
