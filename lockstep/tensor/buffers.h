// Checks tensors, converts them to Buffers, and formats shapes for comparison between ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Empty for a type that lockstep/comm cannot reduce.
std::optional<DType> known_dtype(at::ScalarType type);

// Errors: misuse if undefined; unsupported if quantised, not strided, or in neither CPU nor CUDA
// memory.
void require_dense(const at::Tensor& tensor, std::string_view what);

// As require_dense(); also misuse if elements share an address, as after expand().
void require_writable(const at::Tensor& tensor, std::string_view what);

// As require_dense(); also misuse if not contiguous, or lazily conjugated or negated.
void require_contiguous(const at::Tensor& tensor, std::string_view what);

// The values as one contiguous block: `tensor` itself if possible.
at::Tensor values_of(const at::Tensor& tensor);

// Errors: unsupported for types without a DType, averages of booleans, bitwise operations on
// floating-point numbers, and operations other than sum and average on complex numbers.
void require_reducible(at::ScalarType type, ReduceOp op, std::string_view what);

// `tensor` is contiguous. Complex numbers become pairs of reals. Errors: as require_reducible().
Buffer reducible(const at::Tensor& tensor, ReduceOp op);

// `tensor` is contiguous. Types without a DType become bytes.
Buffer movable(const at::Tensor& tensor);

// Buffer elements per row (dim 0), also of a tensor without rows.
std::size_t elements_of_row(const at::Tensor& tensor, DType dtype);

// For example " Float 2 3".
std::string shape_text(at::ScalarType type, at::IntArrayRef sizes);
std::string shape_text(const at::Tensor& tensor);

// The caller's options, with `text` appended to the label: ranks with different `text` get a
// mismatch, even for equal element counts. Keeps `tensors` alive.
class Labelled {
 public:
  Labelled(const CallOptions& options, std::string_view text, std::vector<at::Tensor> tensors = {});
  Labelled(const Labelled&) = delete;
  Labelled& operator=(const Labelled&) = delete;

  operator const CallOptions&() const { return options_; }

 private:
  std::string label_;
  CallOptions options_;
};

// Rethrows the current `error`; adds "in `name`" to mismatches, timeouts and lost peers.
[[noreturn]] void throw_named(std::string_view name, const Error& error);

template <class Collective>
auto naming_errors(std::string_view name, const Collective& collective) {
  try {
    return collective();
  } catch (const Error& error) {
    throw_named(name, error);
  }
}

// Calls `collective` on values_of(tensor), and copies these back if `written`.
template <class Collective>
void in_place(const at::Tensor& tensor, bool written, Collective collective) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = values_of(tensor);
  collective(values);
  if (written && !values.is_same(tensor)) tensor.copy_(values);
}

}  // namespace lockstep
