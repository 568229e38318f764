// The sum of a tensor over ranks that share no memory (docs/internals/pipeline.md). Ranks send
// counts for all blocks, then blocks of about 1 MiB: whole, or as non-zero rows and their numbers,
// if these are fewer bytes.
//
// A zero row has zero bits only. On all ranks, the sum has the bits of a dense addition in rank
// order; 16-bit types are added in float32 and rounded once. For two ranks these are the bits of
// all_reduce(), except for NaNs of 16 bits.
//
// Memory, from begin() to finish(): at most the tensor's bytes for each rank of the group, and some
// more blocks in finish().
//
// Thread safety: none. Errors: as ProcessGroup's messages; bug, with the peer, for unexpected ones.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::parallel {

class SparseSum {
 public:
  explicit SparseSum(ProcessGroup group) : group_(std::move(group)) {}

  // Whether no two ranks share memory. Otherwise all_reduce(), which adds within hosts before
  // sending, is better. The first call for a group is collective.
  static bool suits(const ProcessGroup& group);

  // Before send(). Starts to receive each peer's mark, which follows its blocks: the blocks then
  // arrive in the background. Otherwise a full pipe would stop the sender.
  void begin();

  // Not blocking. `tensor` is contiguous, has the same sizes and type on all ranks, and must not
  // change before finish().
  void send(const at::Tensor& tensor);

  // Blocking: replaces the sent tensor by the sum.
  void finish();

 private:
  // Rows of a block.
  struct Rows {
    at::Tensor numbers;  // Undefined for all rows.
    at::Tensor values;
  };

  static Rows worth_sending(const at::Tensor& block);
  Rows receive(int peer, const at::Tensor& block, std::int64_t count) const;
  static Rows added(Rows left, Rows right, std::int64_t rows);
  template <class Act>
  void for_each_peer(const Act& act) const;

  const ProcessGroup group_;
  std::vector<at::Tensor> blocks_;       // Views of the tensor.
  std::vector<Rows> own_;                // By block: the rows to send.
  std::vector<std::vector<Work>> sent_;  // By block.
  std::vector<Work> signals_;            // Marks, and counts of rows.
};

}  // namespace lockstep::parallel
