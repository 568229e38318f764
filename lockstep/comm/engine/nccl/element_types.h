// Converts the core's element types and reductions to NCCL's.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <cstdint>
#include <optional>

namespace lockstep::plugin {

struct Reduction {
  ncclDataType_t type;
  ncclRedOp_t op;
};

// Returns nothing for bitwise operations and 16-bit integers, which NCCL lacks. A bool is a byte:
// "or" is the maximum, "and" the minimum.
std::optional<Reduction> reduction_of(std::uint8_t dtype, std::uint8_t reduce_op);

}  // namespace lockstep::plugin
