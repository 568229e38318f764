// What a rank says of the operation that it has entered, compared by all ranks before any of
// them touches the user's memory: that is how a mismatch is an Error and never garbage.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/clean_text.h"
#include "lockstep/comm/core/dtype.h"
#include "lockstep/comm/core/reduce_op.h"
#include "lockstep/job/operation.h"

namespace lockstep {

struct Signature {
  std::uint64_t count = 0;   // Elements, of one rank or of all; bytes to allocate.
  std::uint64_t label = 0;   // A hash of the caller's label; 0 without one. A message's tag.
  std::uint64_t layout = 0;  // A hash of uneven counts; 0 when all ranks' are equal. See below.
  std::int32_t root = 0;
  Operation operation = Operation::none;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;

  bool operator==(const Signature&) const = default;
};

// A bit of Signature::layout, in which no hash of counts has it: the buffers are in CUDA memory.
constexpr std::uint64_t layout_on_cuda = 4;

// Bytes of a label that are shown, and that ranks tell each other: more, to see that it is cut.
constexpr std::size_t most_label_bytes = 200;
constexpr std::size_t most_carried_label_bytes = most_label_bytes + longest_character;

// Such as "all_reduce(sum) of 1024 float32" or "broadcast from rank 0 of 8 int64". `label` is the
// text whose hash it has, as far as it was carried; without it, the hash is shown.
std::string describe(const Signature& signature, std::string_view label = {});

// FNV-1a, never 0.
std::uint64_t hash_of(const void* data, std::size_t bytes);

}  // namespace lockstep
