// The core's element types and reductions as NCCL's.

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

// Nothing when NCCL cannot do it: bits, and integers of 16 bits. A bool is a byte: "or" is its
// greatest, "and" its least.
std::optional<Reduction> reduction_of(std::uint8_t dtype, std::uint8_t reduce_op);

}  // namespace lockstep::plugin
