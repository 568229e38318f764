// The sum of a tensor over ranks that share no memory. A rank sends only the non-zero rows if these
// are fewer bytes than all rows. docs/internals/pipeline.md explains the timing.
//
// The counts of all blocks are sent first, then blocks of about 1 MiB: whole, or as non-zero rows
// and their numbers. "Zero" means all bits. On all ranks, the sum has the bits of a dense addition
// in the order of the ranks, rounded once. For two ranks these are the bits of all_reduce(), except
// for NaNs of 16 bits.
//
// Memory, from send() to finish(): this rank's non-zero rows, and all messages from other ranks so
// far. At most the tensor's bytes for each rank of the group, and some more blocks in finish().
//
// Thread safety: none. Errors: as ProcessGroup's messages; bug, with the peer, for other messages.

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

  // Whether no two ranks share memory. Otherwise all_reduce() is better: it adds on a host before
  // sending. The first call for a group is collective.
  static bool suits(const ProcessGroup& group);

  // Call it once per sum, before send(). Requests a mark that follows all blocks: a sender keeps a
  // message until the receiver requests it or a later one.
  void begin();

  // Returns before others have received it. `tensor` is contiguous, has the same sizes and type on
  // all ranks, and must not change before finish().
  void send(const at::Tensor& tensor);

  // Blocking: replaces the tensor passed to send() by the sum.
  void finish();

 private:
  // All rows of a block, or those with these numbers.
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
