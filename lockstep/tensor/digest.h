// One short text that tells whether tensors are equal bit for bit: between ranks, between runs, and
// between C++ and Python.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/base/api.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

// SHA-256, as 64 hexadecimal digits, over all tensors in turn. Each contributes a line such as
// "float32 [2, 3]\n", then its elements, row by row, in the bytes they have in memory. In Python:
//   for t in tensors: h.update(f"{str(t.dtype)[6:]} {list(t.shape)}\n".encode() + bytes_of(t))
// This is frozen: digests are compared between versions. Errors: misuse for a tensor that is
// undefined or not dense.
LOCKSTEP_API std::string sha256(at::TensorList tensors);

// Over named_tensors(module), without the names.
LOCKSTEP_API std::string sha256(const torch::nn::Module& module);

}  // namespace lockstep
