// A rank's description of its call. All ranks compare theirs before any rank writes the user's
// memory, so a mismatch is an Error and never garbage.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/job/detail/operation.h"

namespace lockstep::comm {

struct Signature {
  // Elements, of one rank or all; allocate: bytes; split: its number; destroy: unreceived messages.
  std::uint64_t count = 0;
  std::uint64_t label = 0;   // Hash of the caller's label; 0 without one. For a message, its tag.
  std::uint64_t layout = 0;  // Hash of uneven counts; 0 for equal parts. Or one of layout_...
  std::int32_t root = 0;
  Operation operation = Operation::none;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;

  bool operator==(const Signature&) const = default;
};

// A bit of Signature::layout: buffers in CUDA memory. No hash of counts sets it.
constexpr std::uint64_t layout_on_cuda = 4;

// Signature::layout of an uneven all_to_all before ranks exchange counts. Collective::counts are
// then those sent to each rank, then those received from each.
constexpr std::uint64_t layout_uneven_pairs = 1;

// Most bytes of a label in messages. Ranks exchange one character more, so that a cut is visible.
constexpr std::size_t most_label_bytes = 200;
constexpr std::size_t most_carried_label_bytes = most_label_bytes + longest_character;

// Such as "all_reduce(sum) of 1024 float32". `label` is the label's text, possibly cut; empty when
// unknown.
std::string describe(const Signature& signature, std::string_view label = {});

// FNV-1a, never 0.
std::uint64_t hash_of(const void* data, std::size_t bytes);

struct Disagreement {
  // Ranks outside the majority's call; all ranks when no call has more than half of them.
  std::vector<int> differing;

  // Such as "rank 0 called all_reduce(sum) of 8 float32, rank 3 called barrier".
  std::string text;
};

// `calls`, by rank, are not all equal. `labels`: their texts; empty when unknown.
Disagreement disagreement_of(const std::vector<Signature>& calls,
                             const std::vector<std::string>& labels = {});

}  // namespace lockstep::comm
