// The sum of a tensor over ranks that share no memory. A rank sends the rows that are not zero,
// where these are fewer bytes than all rows: a step touches few rows of an embedding.
//
// Rows go in blocks of about 1 MiB. A block is sent whole, or as the numbers of its rows that are
// not zero and these rows; the counts of all blocks go first. "Zero" means all bits, so nothing is
// lost. The sum has the bits of a dense addition in the order of the ranks, rounded once: for two
// ranks those of all_reduce(), except for which NaN it is in a type of 16 bits. All ranks do the
// same arithmetic, so they have the same bits.
//
// A message waits at its sender until the receiver asks for it, or for a later one. So begin() asks
// for a mark that comes after all blocks: what others send before this rank calls finish() travels
// meanwhile, and waits in this rank's memory.
//
// Memory, from send() to finish(): the rows of this rank that are not zero, unless their block is
// sent whole, and all that the other ranks have sent by then; at most the tensor's bytes for each
// rank of the group. finish() needs some more blocks.
//
// Thread safety: none. Errors: as ProcessGroup's messages; bug, naming the peer, for a message that
// no SparseSum sends.

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

  // Whether no two ranks share memory. Otherwise the parts of a host should be added up before they
  // leave it, as all_reduce() does. Collective over a group, the first time.
  static bool suits(const ProcessGroup& group);

  // Once for each sum, before send().
  void begin();

  // Returns before others have it. `tensor` is contiguous, and has the same sizes and type on all
  // ranks. It must not be written to before finish().
  void send(const at::Tensor& tensor);

  // Blocking: replaces the tensor that was sent by the sum.
  void finish();

 private:
  // Rows of a block: all of them, or those with these numbers.
  struct Rows {
    at::Tensor numbers;  // Undefined if these are all rows.
    at::Tensor values;
  };

  static Rows worth_sending(const at::Tensor& block);
  Rows receive(int peer, const at::Tensor& block, std::int64_t count) const;
  static Rows added(Rows left, Rows right, std::int64_t rows);
  template <class Act>
  void for_each_peer(const Act& act) const;

  const ProcessGroup group_;
  std::vector<at::Tensor> blocks_;       // Views of the tensor.
  std::vector<Rows> own_;                // By block: the rows that this rank sends.
  std::vector<std::vector<Work>> sent_;  // By block: the messages that carry them.
  std::vector<Work> signals_;            // Marks, and counts of rows.
};

}  // namespace lockstep::parallel
