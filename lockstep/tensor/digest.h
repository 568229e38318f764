// Digests that tell whether tensors are equal bit for bit: between ranks, between runs, and between
// C++ and Python.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/base/api.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

// SHA-256 over all tensors in order, as 64 hexadecimal digits. Each tensor contributes a line such
// as "float32 [2, 3]\n", then its elements, row by row, in the bytes they have in memory. In
// Python:
//   for t in tensors: h.update(f"{str(t.dtype)[6:]} {list(t.shape)}\n".encode() + bytes_of(t))
// The format is frozen, because digests are compared between versions.
// Errors: misuse for a tensor that is undefined or not dense.
LOCKSTEP_API std::string sha256(at::TensorList tensors);

// The digest of named_tensors(module), without the names.
LOCKSTEP_API std::string sha256(const torch::nn::Module& module);

}  // namespace lockstep
