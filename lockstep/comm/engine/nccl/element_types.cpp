// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/nccl/element_types.h"

#include "lockstep/comm/core/dtype.h"
#include "lockstep/comm/core/reduce_op.h"

namespace lockstep::plugin {
namespace {

std::optional<ncclDataType_t> type_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return ncclFloat32;
    case DType::float64:
      return ncclFloat64;
    case DType::float16:
      return ncclFloat16;
    case DType::bfloat16:
      return ncclBfloat16;
    case DType::int8:
      return ncclInt8;
    case DType::int32:
      return ncclInt32;
    case DType::int64:
      return ncclInt64;
    case DType::uint8:
    case DType::boolean:
      return ncclUint8;
    case DType::uint32:
      return ncclUint32;
    case DType::uint64:
      return ncclUint64;
    case DType::int16:
    case DType::uint16:
      return std::nullopt;
  }
  return std::nullopt;
}

bool is_floating(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::float16 ||
         dtype == DType::bfloat16;
}

std::optional<ncclRedOp_t> op_of(DType dtype, ReduceOp op) {
  const bool boolean = dtype == DType::boolean;
  switch (op) {
    case ReduceOp::sum:
      return boolean ? ncclMax : ncclSum;
    case ReduceOp::product:
      return boolean ? ncclMin : ncclProd;
    case ReduceOp::min:
      return ncclMin;
    case ReduceOp::max:
      return ncclMax;
    case ReduceOp::average:
      if (is_floating(dtype)) return ncclAvg;
      return std::nullopt;
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Reduction> reduction_of(std::uint8_t dtype, std::uint8_t reduce_op) {
  const auto type = type_of(static_cast<DType>(dtype));
  const auto op = op_of(static_cast<DType>(dtype), static_cast<ReduceOp>(reduce_op));
  if (!type || !op) return std::nullopt;
  return Reduction{*type, *op};
}

}  // namespace lockstep::plugin
