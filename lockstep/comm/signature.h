// What a rank says of the collective that it has entered, compared by all ranks before any of
// them touches the user's memory: that is how a mismatch is an Error and never garbage.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/comm/dtype.h"
#include "lockstep/comm/operation.h"

namespace lockstep {

struct Signature {
  std::uint64_t count = 0;  // Elements; bytes for allocate.
  std::uint64_t tag = 0;    // A hash of the tag that the caller gave; 0 without one.
  std::int32_t root = 0;
  Operation operation = Operation::none;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;

  bool operator==(const Signature&) const = default;
};

// Such as "all_reduce(sum) of 1024 float32" or "broadcast from rank 0 of 8 int64".
std::string describe(const Signature& signature);

}  // namespace lockstep
