// Converts tensors to comm's Buffers, checks them first, and converts shapes to labels that all
// ranks compare.

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

// Empty for a type that comm does not reduce.
std::optional<DType> known_dtype(at::ScalarType type);

// Errors: misuse for an undefined tensor; unsupported for a tensor that is not strided or lies in
// neither CPU nor CUDA memory. Also for a quantised one, whose scale is not among its elements.
void require_dense(const at::Tensor& tensor, std::string_view what);

// Like require_dense(). Errors: also misuse for a tensor with several elements at one address.
void require_writable(const at::Tensor& tensor, std::string_view what);

// Like require_dense(). Errors: also misuse if the tensor's memory does not contain exactly its
// elements in their order.
void require_contiguous(const at::Tensor& tensor, std::string_view what);

// Returns the values of `tensor` as one contiguous block: `tensor` itself if it is contiguous.
at::Tensor values_of(const at::Tensor& tensor);

// Errors: unsupported for types that comm does not reduce, averages of integers, bitwise operations
// on non-integers, and operations on complex numbers other than sum and average.
void require_reducible(at::ScalarType type, ReduceOp op, std::string_view what);

// `tensor` is contiguous. Complex numbers become pairs of reals. Errors: as require_reducible().
Buffer reducible(const at::Tensor& tensor, ReduceOp op);

// `tensor` is contiguous. Types that comm lacks become bytes.
Buffer movable(const at::Tensor& tensor);

// Number of Buffer elements in one row along dim 0. Correct also for a tensor without rows.
std::size_t elements_of_row(const at::Tensor& tensor, DType dtype);

// Example: " Float 2 3".
std::string shape_text(at::ScalarType type, at::IntArrayRef sizes);
std::string shape_text(const at::Tensor& tensor);

// The caller's options with `text` appended to the caller's label. Ranks whose types or shapes in
// `text` differ get a mismatch, even if their element counts are equal. Keeps `tensors` alive.
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

// Rethrows the current `error`. Mismatches, timeouts and lost peers get "in `name`", because comm's
// messages contain only labels that differ.
[[noreturn]] void throw_named(std::string_view name, const Error& error);

// Calls `collective`, with its Errors named.
template <class Collective>
auto naming_errors(std::string_view name, const Collective& collective) {
  try {
    return collective();
  } catch (const Error& error) {
    throw_named(name, error);
  }
}

// Calls `collective` on `tensor` if it is contiguous, otherwise on a contiguous copy. The copy is
// written back if `written`.
template <class Collective>
void in_place(const at::Tensor& tensor, bool written, Collective collective) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = values_of(tensor);
  collective(values);
  if (written && !values.is_same(tensor)) tensor.copy_(values);
}

}  // namespace lockstep
