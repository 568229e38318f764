// The description of a call that each rank gives when it enters an operation. All ranks compare
// them before any rank writes the user's memory, so a mismatch is an Error and never garbage.

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
  std::uint64_t count = 0;   // Elements, of one rank or of all; for allocate, bytes.
  std::uint64_t label = 0;   // Hash of the caller's label; 0 without one. For a message, its tag.
  std::uint64_t layout = 0;  // Hash of uneven counts; 0 for equal parts. Or one of layout_...
  std::int32_t root = 0;
  Operation operation = Operation::none;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;

  bool operator==(const Signature&) const = default;
};

// A bit of Signature::layout: the buffers are in CUDA memory. No hash of counts sets it.
constexpr std::uint64_t layout_on_cuda = 4;

// Signature::layout of an uneven all_to_all before ranks have exchanged all counts.
// Collective::counts are then this rank's: those sent to each rank, then those received from each.
constexpr std::uint64_t layout_uneven_pairs = 1;

// Bytes of a label that messages show, and bytes that ranks exchange. The latter is larger, so that
// a cut is visible.
constexpr std::size_t most_label_bytes = 200;
constexpr std::size_t most_carried_label_bytes = most_label_bytes + longest_character;

// Returns text such as "all_reduce(sum) of 1024 float32" or "broadcast from rank 0 of 8 int64".
// `label` is the text of the signature's label, possibly cut; empty when unknown.
std::string describe(const Signature& signature, std::string_view label = {});

// Returns the FNV-1a hash, never 0.
std::uint64_t hash_of(const void* data, std::size_t bytes);

// Describes which ranks called which operations when their calls differed.
struct Disagreement {
  // Ranks outside the majority's call; all ranks when no call has more than half of them.
  std::vector<int> differing;

  // Such as "rank 0 called all_reduce(sum) of 8 float32, rank 3 called barrier; ranks 1-2 called
  // what rank 0 did".
  std::string text;
};

// `calls`, by rank, are not all equal. `labels` are the texts of their labels, or empty when
// unknown.
Disagreement disagreement_of(const std::vector<Signature>& calls,
                             const std::vector<std::string>& labels = {});

}  // namespace lockstep::comm
