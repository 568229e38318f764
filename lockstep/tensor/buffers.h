// How a tensor's elements become a Buffer of comm, and a shape a label that all ranks compare.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Errors: misuse for an undefined tensor; unsupported for one that is not strided, in neither CPU
// nor CUDA memory, or quantised, whose scale is not among its elements.
void require_dense(const at::Tensor& tensor, std::string_view what);

// As require_dense(); in addition, misuse for a tensor of which several elements lie at one place.
void require_writable(const at::Tensor& tensor, std::string_view what);

// As require_dense(); in addition, misuse for one whose memory is not its elements, in their order.
void require_contiguous(const at::Tensor& tensor, std::string_view what);

// The values of `tensor` as one block in their order: itself when it is that already.
at::Tensor values_of(const at::Tensor& tensor);

// Errors: unsupported for types that comm does not reduce, for an average of integers, for bits of
// others, and for anything but the sum and the average of complex numbers.
void require_reducible(at::ScalarType type, ReduceOp op, std::string_view what);

// Of a contiguous tensor. Complex numbers are pairs of reals. Errors: as above.
Buffer reducible(const at::Tensor& tensor, ReduceOp op);

// Of a contiguous tensor. Types that comm lacks are bytes.
Buffer movable(const at::Tensor& tensor);

// How many elements of a Buffer a row along dim 0 is, in a tensor of which one may have no rows.
std::size_t elements_of_row(const at::Tensor& tensor, DType dtype);

// Such as " Float 2 3".
std::string shape_text(at::ScalarType type, at::IntArrayRef sizes);
std::string shape_text(const at::Tensor& tensor);

// The caller's options with `text` after the caller's own label: ranks that differ in the types and
// shapes that it names get a mismatch, even with as many elements. Keeps `tensors` alive.
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

// Calls `collective` on `tensor`, or on a contiguous copy that is then copied back if `written`.
template <class Collective>
void in_place(const at::Tensor& tensor, bool written, Collective collective) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = values_of(tensor);
  collective(values);
  if (written && !values.is_same(tensor)) tensor.copy_(values);
}

}  // namespace lockstep
