# SPDX-License-Identifier: Apache-2.0
"""Counts training steps for `lockstep top` and `lockstep tune`: each step of an optimizer is one.
A program with several optimizers, such as a GAN, counts one for each."""

from torch.optim import optimizer as torch_optimizer

installed = False


def install() -> None:
    """Counts from now on. Further calls do nothing."""
    global installed
    if installed:
        return
    installed = True
    from lockstep import _C

    torch_optimizer.register_optimizer_step_post_hook(lambda *_: _C.count_step())
