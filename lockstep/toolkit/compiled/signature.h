// Describes a compiled step: parameters, buffers, inputs and results
// (python/lockstep_export/package.py).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::compiled {

struct TensorForm {
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes = {};
  std::vector<std::size_t> order = {};     // Dimensions in memory order, outermost first.
  std::vector<std::int64_t> strides = {};  // For `sizes`; in elements.

  // For a dense tensor of other sizes with the same layout.
  std::vector<std::int64_t> strides_for(at::IntArrayRef other_sizes) const;

  at::Tensor make() const;
};

struct NamedForm {
  std::vector<std::string> names = {};  // Tied weights have several.
  TensorForm form = {};
};

enum class Role {
  trained,
  frozen,  // Required no gradient at the export.
  unused,  // Does not affect the loss.
};

struct ParameterForm : NamedForm {
  Role role = Role::trained;
};

struct InputForm {
  TensorForm form = {};
  std::optional<std::size_t> batch_dim = {};  // The dimension of variable size.
};

// Results of one graph: new values of changed buffers, the loss, further outputs and, in training
// mode, gradients of trained parameters.
struct GraphForm {
  std::vector<std::size_t> updated = {};  // Indices of changed buffers.
  std::size_t outputs = 1;                // Number, with the loss.
  std::size_t results = 1;
  std::int64_t least_batch = 1;
  std::int64_t most_batch = std::numeric_limits<std::int64_t>::max();
  std::map<std::string, std::string> files = {};  // Paths, with their sha256().
};

struct Signature {
  std::string torch = {};                          // Such as "2.13.0+cpu".
  std::vector<std::string> instruction_sets = {};  // As in /proc/cpuinfo.
  int threads = 0;                                 // Intra-op; 0: those of the process.
  std::vector<ParameterForm> parameters = {};
  std::vector<NamedForm> buffers = {};
  std::vector<InputForm> inputs = {};
  GraphForm train = {};
  GraphForm eval = {};
};

// `file` is for messages. Errors: corrupt if the form is not the exporter's; unsupported for
// another version of it.
Signature read_signature(std::string_view file, std::string_view json);

// Errors: unsupported for another minor version of LibTorch, or missing instruction sets.
void require_runnable(std::string_view file, const Signature& signature,
                      const std::vector<std::string>& cpu);

}  // namespace lockstep::compiled
