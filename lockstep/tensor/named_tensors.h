// Named tensors of a module, the names of tied weights, and digests of tensors.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// The module's parameters or buffers, in its own order, sharing its memory. Omits undefined ones,
// such as a missing bias.
LOCKSTEP_API NamedTensors named_parameters(const torch::nn::Module& module);
LOCKSTEP_API NamedTensors named_buffers(const torch::nn::Module& module);

// The parameters, then the buffers.
LOCKSTEP_API NamedTensors named_tensors(const torch::nn::Module& module);

// Maps each name to the first name of the same tensor; a tied weight has several. Non-empty tensors
// are the same if type, sizes, strides and address (on meta: storage and offset) are equal.
LOCKSTEP_API std::map<std::string, std::string> first_names(const NamedTensors& tensors);

// SHA-256 of the tensors in order, as 64 hexadecimal digits, to compare ranks, runs, and C++ with
// Python. Each tensor adds a line such as "float32 [2, 3]\n", then its elements, row by row. In
// Python:
//   for t in tensors: h.update(f"{str(t.dtype)[6:]} {list(t.shape)}\n".encode() + bytes_of(t))
// The format is frozen. Errors: misuse for a tensor that is undefined, not dense or on meta.
LOCKSTEP_API std::string sha256(at::TensorList tensors);

// The digest of named_tensors(module), without the names. Sharded parameters (sharded_module.h)
// count as whole ones: collective over the group of each layout.
LOCKSTEP_API std::string sha256(const torch::nn::Module& module);

}  // namespace lockstep
