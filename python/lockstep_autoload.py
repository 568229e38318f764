# SPDX-License-Identifier: Apache-2.0
"""The entry point that `import torch` calls, so that torch.distributed knows the backend.

It is a module beside the package because `import torch` must not fail where the package cannot be
imported, such as with another version of PyTorch: there, only a use of the backend raises why.
"""


def register() -> None:
    try:
        import lockstep  # Registers itself.
    except Exception as error:
        refuse_with(error)


def refuse_with(error: Exception) -> None:
    """Registers a backend whose groups cannot be made, because of `error`."""
    from torch import distributed

    def make_backend(*_: object) -> None:
        raise error

    if distributed.is_available():
        distributed.Backend.register_backend("lockstep", make_backend, extended_api=True,
                                             devices=["cpu"])
