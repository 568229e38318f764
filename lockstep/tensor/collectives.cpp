// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/collectives.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "lockstep/comm/error.h"

namespace lockstep {
namespace {

void require_dense_cpu(const at::Tensor& tensor, const char* what) {
  require(tensor.defined(), std::string(what) + ": the tensor is undefined");
  if (!tensor.is_cpu() || tensor.layout() != at::kStrided)
    throw Error(Fault::unsupported, std::string(what) + ": only dense CPU tensors are supported");
}

void require_contiguous(const at::Tensor& tensor, const char* what) {
  require_dense_cpu(tensor, what);
  require(tensor.is_contiguous(), std::string(what) + ": the tensor must be contiguous");
}

Buffer reducible(const at::Tensor& tensor) {
  return {.data = tensor.data_ptr(),
          .count = static_cast<std::size_t>(tensor.numel()),
          .dtype = reducible_dtype(tensor.scalar_type())};
}

// Types that comm cannot reduce travel as bytes.
Buffer movable(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kLong:
    case at::kBFloat16:
      return reducible(tensor);
    default:
      return {.data = tensor.data_ptr(), .count = tensor.nbytes(), .dtype = DType::uint8};
  }
}

CallOptions keeping(std::vector<at::Tensor> tensors, const CallOptions& options) {
  CallOptions kept = options;
  kept.keep_alive = std::make_shared<std::vector<at::Tensor>>(std::move(tensors));
  return kept;
}

// Calls `collective` on `tensor`, or on a contiguous copy that is then copied back.
template <class Collective>
void in_place(const at::Tensor& tensor, Collective collective) {
  const at::NoGradGuard no_grad;
  const at::Tensor contiguous = tensor.contiguous();
  collective(contiguous);
  if (!contiguous.is_same(tensor)) tensor.copy_(contiguous);
}

// Ranks whose shapes differ get a mismatch, also when they have as many elements.
std::string tag_of_shape(const at::Tensor& tensor, const CallOptions& options) {
  std::string tag(options.tag);
  for (const std::int64_t size : tensor.sizes()) tag += ' ' + std::to_string(size);
  return tag;
}

std::vector<std::int64_t> gathered_shape(const at::Tensor& tensor, const ProcessGroup& group) {
  std::vector<std::int64_t> shape{group.size()};
  shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
  return shape;
}

}  // namespace

DType reducible_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return DType::float32;
    case at::kDouble:
      return DType::float64;
    case at::kLong:
      return DType::int64;
    case at::kBFloat16:
      return DType::bfloat16;
    default:
      throw Error(Fault::unsupported,
                  std::string("elements of type ") + c10::toString(dtype) + " cannot be reduced");
  }
}

void all_reduce(const at::Tensor& tensor, const ProcessGroup& group, ReduceOp op,
                const CallOptions& options) {
  require_dense_cpu(tensor, "all_reduce");
  in_place(tensor, [&](const at::Tensor& data) { group.all_reduce(reducible(data), op, options); });
}

Work all_reduce_async(const at::Tensor& tensor, const ProcessGroup& group, ReduceOp op,
                      const CallOptions& options) {
  require_contiguous(tensor, "all_reduce_async");
  return group.all_reduce_async(reducible(tensor), op, keeping({tensor}, options));
}

void broadcast(const at::Tensor& tensor, const ProcessGroup& group, int root,
               const CallOptions& options) {
  require_dense_cpu(tensor, "broadcast");
  in_place(tensor, [&](const at::Tensor& data) { group.broadcast(movable(data), root, options); });
}

Work broadcast_async(const at::Tensor& tensor, const ProcessGroup& group, int root,
                     const CallOptions& options) {
  require_contiguous(tensor, "broadcast_async");
  return group.broadcast_async(movable(tensor), root, keeping({tensor}, options));
}

at::Tensor all_gather(const at::Tensor& tensor, const ProcessGroup& group,
                      const CallOptions& options) {
  require_dense_cpu(tensor, "all_gather");
  const at::Tensor input = tensor.detach().contiguous();
  at::Tensor output = at::empty(gathered_shape(tensor, group), input.options());
  const std::string tag = tag_of_shape(tensor, options);
  CallOptions tagged = options;
  tagged.tag = tag;
  group.all_gather(movable(input), movable(output), tagged);
  return output;
}

Work all_gather_async(const at::Tensor& output, const at::Tensor& tensor, const ProcessGroup& group,
                      const CallOptions& options) {
  require_contiguous(tensor, "all_gather_async");
  require_contiguous(output, "all_gather_async");
  require(output.sizes() == at::IntArrayRef(gathered_shape(tensor, group)) &&
              output.scalar_type() == tensor.scalar_type(),
          "all_gather_async: output must be of the tensor's type and of shape [size, *sizes]");
  const std::string tag = tag_of_shape(tensor, options);
  CallOptions kept = keeping({tensor, output}, options);
  kept.tag = tag;
  return group.all_gather_async(movable(tensor), movable(output), kept);
}

at::Tensor registered_zeros(at::IntArrayRef sizes, at::ScalarType dtype,
                            const ProcessGroup& group) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  auto bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  std::int64_t elements = 1;
  for (std::size_t dim = sizes.size(); dim-- > 0;) {
    strides[dim] = elements;
    require(sizes[dim] >= 0 && !__builtin_mul_overflow(bytes, sizes[dim], &bytes),
            "registered_zeros: a size is negative, or all together are too large");
    elements *= sizes[dim];
  }
  return view_of(group.allocate(static_cast<std::size_t>(bytes)), 0, sizes, strides, dtype);
}

at::Tensor view_of(const RegisteredMemory& memory, std::size_t offset, at::IntArrayRef sizes,
                   at::IntArrayRef strides, at::ScalarType dtype) {
  auto* const data = static_cast<std::byte*>(memory.data()) + offset;
  return at::from_blob(
      data, sizes, strides, [memory](void*) {}, at::TensorOptions().dtype(dtype));
}

}  // namespace lockstep
