// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/buffers.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/tensor/torch_version.h"

namespace lockstep {
namespace {

// LibTorch reuses the memory only after work enqueued in the current stream so far.
void set_device(Buffer& buffer, const at::Tensor& tensor) {
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  const c10::Stream stream = cuda.getStream(tensor.device());
  cuda.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
  buffer.device = DeviceKind::cuda;
  buffer.device_index = tensor.device().index();
  buffer.stream = native_handle_of(stream);
}

Buffer buffer_of(const at::Tensor& tensor, DType dtype) {
  Buffer buffer{
      .data = tensor.data_ptr(), .count = tensor.nbytes() / size_of(dtype), .dtype = dtype};
  if (tensor.is_cuda()) set_device(buffer, tensor);
  return buffer;
}

// Until an asynchronous call completes.
struct Kept {
  std::vector<at::Tensor> tensors;
  std::shared_ptr<const void> callers;
};

}  // namespace

std::optional<DType> known_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::float32;
    case at::kDouble:
      return DType::float64;
    case at::kHalf:
      return DType::float16;
    case at::kBFloat16:
      return DType::bfloat16;
    case at::kChar:
      return DType::int8;
    case at::kShort:
      return DType::int16;
    case at::kInt:
      return DType::int32;
    case at::kLong:
      return DType::int64;
    case at::kByte:
      return DType::uint8;
    case at::kUInt16:
      return DType::uint16;
    case at::kUInt32:
      return DType::uint32;
    case at::kUInt64:
      return DType::uint64;
    case at::kBool:
      return DType::boolean;
    default:
      return std::nullopt;
  }
}

void require_dense(const at::Tensor& tensor, std::string_view what) {
  require(tensor.defined(), [&] { return std::string(what) + ": the tensor is undefined"; });
  if (!(tensor.is_cpu() || tensor.is_cuda()) || tensor.layout() != at::kStrided ||
      tensor.is_quantized())
    throw Error(Fault::unsupported, std::string(what) + ": only dense CPU and CUDA tensors are " +
                                        "supported, not quantised ones");
}

void require_writable(const at::Tensor& tensor, std::string_view what) {
  require_dense(tensor, what);
  require(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, [&] {
    return std::string(what) +
           ": several elements of the output tensor have one address, as after expand(): "
           "clone() it";
  });
}

void require_contiguous(const at::Tensor& tensor, std::string_view what) {
  require_dense(tensor, what);
  require(tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(), [&] {
    return std::string(what) + ": the tensor must be contiguous, and not a lazy conjugate";
  });
}

at::Tensor values_of(const at::Tensor& tensor) {
  return tensor.contiguous().resolve_conj().resolve_neg();
}

void require_reducible(at::ScalarType type, ReduceOp op, std::string_view what) {
  const bool complex = c10::isComplexType(type);
  const bool bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
  const bool integral = c10::isIntegralType(type, /*includeBool=*/true);
  const bool meaningful = complex   ? op == ReduceOp::sum || op == ReduceOp::average
                          : bitwise ? integral
                                    : op != ReduceOp::average || type != at::kBool;
  if (!meaningful || !known_dtype(c10::toRealValueType(type)))
    throw Error(Fault::unsupported, std::string(what) + ": " + std::string(name(op)) +
                                        " is not supported for elements of type " +
                                        c10::toString(type));
}

Buffer reducible(const at::Tensor& tensor, ReduceOp op) {
  require_reducible(tensor.scalar_type(), op, "a reduction");
  return buffer_of(tensor, *known_dtype(c10::toRealValueType(tensor.scalar_type())));
}

Buffer movable(const at::Tensor& tensor) {
  return buffer_of(tensor, known_dtype(tensor.scalar_type()).value_or(DType::uint8));
}

std::size_t elements_of_row(const at::Tensor& tensor, DType dtype) {
  std::size_t elements = c10::elementSize(tensor.scalar_type()) / size_of(dtype);
  for (const std::int64_t size : tensor.sizes().slice(1))
    elements *= static_cast<std::size_t>(size);
  return elements;
}

std::string shape_text(at::ScalarType type, at::IntArrayRef sizes) {
  std::string text = std::string(" ") + c10::toString(type);
  for (const std::int64_t size : sizes) text += ' ' + std::to_string(size);
  return text;
}

std::string shape_text(const at::Tensor& tensor) {
  return shape_text(tensor.scalar_type(), tensor.sizes());
}

Labelled::Labelled(const CallOptions& options, std::string_view text,
                   std::vector<at::Tensor> tensors)
    : label_(options.label), options_(options) {
  if (label_.empty() && text.starts_with(' ')) text.remove_prefix(1);
  label_ += text;
  options_.label = label_;
  if (!tensors.empty())
    options_.keep_alive =
        std::make_shared<const Kept>(Kept{std::move(tensors), options.keep_alive});
}

void throw_named(std::string_view name, const Error& error) {
  const std::string prefix = "in " + std::string(name) + ": ";
  if (error.failure()) {
    std::string text = bare_text(error);
    text.resize(std::min(text.size(), text.rfind(": " + describe(*error.failure()))));
    throw Error(prefix + text, *error.failure());
  }
  if (error.fault() != Fault::mismatch && error.fault() != Fault::timeout) throw;
  throw Error(error.fault(), prefix + bare_text(error), error.ranks());
}

}  // namespace lockstep
