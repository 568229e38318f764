// all_reduce in a ring, by messages of Gloo.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/engine/gloo/combine.h"
#include "lockstep/comm/engine/gloo/mesh.h"

namespace lockstep::comm::engines {

// A member's schedule in a ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
// clusters of workstations", 2009).
//
// The data has a chunk for each member, and a chunk has segments. In each round, a member sends one
// segment to the next member and receives one from the previous. The first half of the rounds adds
// segments, the second half passes on the sums.
class Ring {
 public:
  // Segments have at most `most` elements. Chunks have at least two segments, so that one is
  // transferred while another is added.
  Ring(std::size_t count, int rank, int size, std::size_t most);

  // In elements. Empty after the last round and, in some rounds, if there are fewer elements than
  // segments.
  struct Block {
    std::size_t begin = 0;
    std::size_t count = 0;
  };
  Block leaving(std::size_t turn) const { return sent_by(rank_, turn); }
  Block arriving(std::size_t turn) const { return sent_by(rank_ + size_ - 1, turn); }

  std::size_t turns() const { return 2 * sums(); }
  std::size_t sums() const { return (size_ - 1) * blocks_; }  // Rounds of the first half.

  // A segment that arrives in one round leaves this many rounds later.
  std::size_t delay() const { return blocks_; }

 private:
  Block sent_by(std::size_t member, std::size_t turn) const;  // `member` modulo their number.

  const std::size_t count_;
  const std::size_t rank_;
  const std::size_t size_;
  const std::size_t blocks_;  // Per chunk.
};

// Replaces `data` by the combination of all members' data. In chunk c, member c + 1's data is
// combined with member c's, member c + 2's with the result, and so on. Errors: Gloo's.
void all_reduce_in_ring(Mesh& mesh, const lockstep_buffer& data, Combine combine);

}  // namespace lockstep::comm::engines
