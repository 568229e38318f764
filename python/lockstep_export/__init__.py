# SPDX-License-Identifier: Apache-2.0
"""Compiles a training step, forward and backward, for lockstep::CompiledModule.

    python -m lockstep_export my_model:make --batch 32 --dynamic-batch --out step.pt2

`make(batch)` returns a model and a tuple of inputs with that many samples. The model's forward()
takes the inputs and returns the loss, a tensor with one element, or a tuple of the loss and further
tensors. docs/guide/compiled.md shows a whole program.

Needs g++, and PyTorch of the minor version that the LibTorch of the program has. That program needs
neither Python nor g++.
"""
