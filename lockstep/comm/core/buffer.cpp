// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/core/buffer.h"

namespace lockstep {

std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::float64:
      return "float64";
    case DType::int64:
      return "int64";
    case DType::bfloat16:
      return "bfloat16";
    case DType::uint8:
      return "uint8";
    case DType::float16:
      return "float16";
    case DType::int8:
      return "int8";
    case DType::int16:
      return "int16";
    case DType::int32:
      return "int32";
    case DType::uint16:
      return "uint16";
    case DType::uint32:
      return "uint32";
    case DType::uint64:
      return "uint64";
    case DType::boolean:
      return "bool";
  }
  return "unknown";
}

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::uint8:
    case DType::int8:
    case DType::boolean:
      return 1;
    case DType::bfloat16:
    case DType::float16:
    case DType::int16:
    case DType::uint16:
      return 2;
    case DType::float32:
    case DType::int32:
    case DType::uint32:
      return 4;
    case DType::float64:
    case DType::int64:
    case DType::uint64:
      return 8;
  }
  return 0;
}

std::string_view name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::average:
      return "average";
    case ReduceOp::product:
      return "product";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::band:
      return "band";
    case ReduceOp::bor:
      return "bor";
    case ReduceOp::bxor:
      return "bxor";
  }
  return "unknown";
}

}  // namespace lockstep
