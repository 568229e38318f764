// The complete list of what collectives cannot do on CUDA memory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "lockstep/comm/core/dtype.h"
#include "lockstep/comm/core/reduce_op.h"
#include "lockstep/job/detail/operation.h"

namespace lockstep {

// Returns the reason; empty for supported calls. `op` matters to reductions only. Ignores
// combinations without a meaning on any device, such as an average of integers.
constexpr std::string_view cuda_unsupported(Operation operation, DType dtype, ReduceOp op) {
  if (operation == Operation::send || operation == Operation::recv)
    return "messages move CPU memory only";
  if (!reduces(operation)) return {};
  if (op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor)
    return "CUDA memory cannot be combined bit by bit";
  if (dtype == DType::int16 || dtype == DType::uint16)
    return "integers of 16 bits cannot be combined in CUDA memory";
  return {};
}

}  // namespace lockstep
