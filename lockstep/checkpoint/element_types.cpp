// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/element_types.h"

#include <optional>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::optional<SafetensorsType> find_type(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return SafetensorsType::BOOL;
    case at::kByte:
      return SafetensorsType::U8;
    case at::kChar:
      return SafetensorsType::I8;
    case at::kShort:
      return SafetensorsType::I16;
    case at::kHalf:
      return SafetensorsType::F16;
    case at::kBFloat16:
      return SafetensorsType::BF16;
    case at::kInt:
      return SafetensorsType::I32;
    case at::kFloat:
      return SafetensorsType::F32;
    case at::kComplexFloat:
      return SafetensorsType::C64;
    case at::kDouble:
      return SafetensorsType::F64;
    case at::kLong:
      return SafetensorsType::I64;
    default:
      return std::nullopt;
  }
}

std::string cure_for(const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kComplexDouble) return {};
  return "; it has one for complex64, and for torch::view_as_real() of this one";
}

}  // namespace

at::ScalarType scalar_type_of(SafetensorsType type) {
  switch (type) {
    case SafetensorsType::BOOL:
      return at::kBool;
    case SafetensorsType::U8:
      return at::kByte;
    case SafetensorsType::I8:
      return at::kChar;
    case SafetensorsType::I16:
      return at::kShort;
    case SafetensorsType::F16:
      return at::kHalf;
    case SafetensorsType::BF16:
      return at::kBFloat16;
    case SafetensorsType::I32:
      return at::kInt;
    case SafetensorsType::F32:
      return at::kFloat;
    case SafetensorsType::C64:
      return at::kComplexFloat;
    case SafetensorsType::F64:
      return at::kDouble;
    case SafetensorsType::I64:
      return at::kLong;
  }
  throw Error(Fault::bug, "safetensors: no such type");
}

SafetensorsEntry entry_for(const std::string& name, const at::Tensor& tensor) {
  require(tensor.defined(), [&] { return "safetensors: tensor " + shown(name) + " is undefined"; });
  const auto type = find_type(tensor.scalar_type());
  if (!type || tensor.layout() != at::kStrided)
    throw Error(Fault::unsupported, "safetensors: tensor " + shown(name) + " is " +
                                        tensor.toString() + ", which the format has no place for" +
                                        cure_for(tensor));
  SafetensorsEntry entry;
  entry.name = name;
  entry.type = *type;
  entry.shape = tensor.sizes().vec();
  return entry;
}

}  // namespace lockstep
