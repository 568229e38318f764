# SPDX-License-Identifier: Apache-2.0
"""The entry point that `import torch` calls, so that torch.distributed knows the backend.

It is a module outside of the package because `import torch` must not fail if the package cannot
be imported, for example with another version of PyTorch. The first use of the backend then
raises the reason.
"""


def register() -> None:
    try:
        import lockstep  # Registers itself.
    except Exception as error:
        refuse_with(error)


def refuse_with(error: Exception) -> None:
    """Registers a backend whose groups cannot be created, because of `error`."""
    from torch import distributed

    def make_backend(*_: object) -> None:
        raise error

    if distributed.is_available():
        distributed.Backend.register_backend("lockstep", make_backend, extended_api=True,
                                             devices=["cpu"])
