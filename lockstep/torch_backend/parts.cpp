// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/parts.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/torch_backend/registered_allocator.h"

namespace lockstep::torch_backend {
namespace {

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

bool are_adjacent(const std::vector<at::Tensor>& tensors) {
  const auto* next = static_cast<const char*>(tensors.front().const_data_ptr());
  for (const at::Tensor& tensor : tensors) {
    if (!is_plain(tensor) || tensor.const_data_ptr() != next ||
        !tensor.storage().is_alias_of(tensors.front().storage()))
      return false;
    next += tensor.nbytes();
  }
  return true;
}

std::int64_t elements_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return elements;
}

void require_alike(const std::vector<at::Tensor>& tensors, std::string_view what) {
  require(!tensors.empty(), [&] { return std::string(what) + ": the list of tensors is empty"; });
  for (const at::Tensor& tensor : tensors) {
    require_dense(tensor, what);
    require(tensor.scalar_type() == tensors.front().scalar_type(), [&] {
      return std::string(what) + ": tensors of different types, " +
             c10::toString(tensors.front().scalar_type()) + " and " +
             c10::toString(tensor.scalar_type());
    });
  }
}

}  // namespace

Parts::Parts(std::vector<at::Tensor> tensors, std::string_view what)
    : tensors_(std::move(tensors)) {
  require_alike(tensors_, what);
  const at::Tensor& first = tensors_.front();
  in_place_ = are_adjacent(tensors_);
  if (!in_place_) {
    const RegisteredTensors scope(RegisteredTensors::Demand::if_there_is_memory);
    block_ = at::empty({elements_of(tensors_)}, first.options());
  } else if (tensors_.size() == 1)
    block_ = first;
  else
    block_ = first.as_strided({elements_of(tensors_)}, {1});
}

Buffer Parts::buffer() const { return movable(block_); }

Buffer Parts::buffer(ReduceOp op) const { return reducible(block_, op); }

Counts Parts::counts(const Buffer& buffer) const {
  const auto is_equal = [&](const at::Tensor& tensor) {
    return tensor.numel() == tensors_.front().numel();
  };
  if (std::all_of(tensors_.begin(), tensors_.end(), is_equal)) return {};
  Counts counts;
  for (const at::Tensor& tensor : tensors_)
    counts.push_back(static_cast<std::size_t>(tensor.nbytes()) / size_of(buffer.dtype));
  return counts;
}

template <class Act>
void Parts::for_each_part(const Act& act) const {
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors_) {
    act(tensor, block_.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

void Parts::fill() {
  if (in_place_) return;
  for_each_part([](const at::Tensor& tensor, const at::Tensor& part) { part.copy_(tensor); });
}

void Parts::spread() const {
  if (in_place_) return;
  for_each_part([](const at::Tensor& tensor, const at::Tensor& part) { tensor.copy_(part); });
}

}  // namespace lockstep::torch_backend
