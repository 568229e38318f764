// Moves unregistered data between ranks, through staging buffers that stay in cache
// (docs/algorithms.md).
//
// No rank overwrites data that another rank still reads. When a rank writes a chunk, all
// ranks have read the chunk two before (three before, in an all_reduce): they had a
// rendezvous in between. Three consecutive chunks do not overlap: a staging buffer has at
// least four. A collective that starts at the beginning of the buffer, or of a chunk, skips
// less than one.
//
// Thread safety: one thread only.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/shm/barrier.h"
#include "lockstep/comm/shm/group_segment.h"
#include "lockstep/comm/shm/parts.h"
#include "lockstep/comm/shm/reduction.h"

namespace lockstep::comm {

class Staging {
 public:
  // All arguments must outlive it.
  Staging(const GroupSegment& segment, Barrier& barrier, Reduction& reduction, int rank, int ranks)
      : segment_(segment), barrier_(barrier), reduction_(reduction), rank_(rank), size_(ranks) {}

  // Whether it supports the operation, given a kernel for its reduction.
  static bool does(Operation operation);

  // Bytes of a rank's larger buffer; for uneven parts in all_to_all, of all ranks together.
  static std::size_t bytes_of(const Collective& collective, int ranks);

  // Whether copying the data is faster than one more rendezvous.
  static bool is_small(const Collective& collective, int ranks);

  // Chooses the position in the staging buffers. Call it before run().
  void begin(const Collective& collective);

  // Writes the first chunk. Call it before the rendezvous that precedes run().
  void put_first(const Collective& collective);

  void run(const Collective& collective);

  // After a rendezvous: completes an all_reduce in which ranks have reduced the beginning of their
  // slices (RankBlock::reduced): copies that part, and reduces the rest.
  void finish_all_reduce(const Collective& collective);

 private:
  void reserve();
  bool reduces_at_once(const Collective& collective) const;
  void reduce_at_once(const Collective& collective);
  void all_reduce(const Collective& collective);
  void put(const Collective& collective, std::size_t chunk);
  void put_around_slice(const Collective& collective, std::size_t chunk);
  void combine_slice(const Collective& collective, std::size_t chunk);
  void take(const Collective& collective, std::size_t chunk);
  void take_slices(const Collective& collective, std::size_t chunk);
  void take_whole(const Collective& collective, std::size_t chunk, bool only_reader);
  void take_parts(const Collective& collective, std::size_t chunk, bool only_reader);
  void reduce_part(const Collective& collective, std::size_t chunk);

  // The range of a part with `count` elements that is in a chunk, from the part's begin.
  Range in_chunk(std::size_t count, std::size_t chunk) const;
  // The part of an all_reduce's chunk that `rank` combines.
  Range slice_in(Range chunk, int rank) const;
  std::byte* buffer(int rank, std::size_t chunk) const;
  std::byte* slot(int rank, int to, std::size_t chunk) const;
  void take_bytes(std::byte* to, const std::byte* from, std::size_t bytes, bool only_reader) const;
  void keep_bytes(std::byte* to, const std::byte* from, std::size_t bytes) const;

  const GroupSegment& segment_;
  Barrier& barrier_;
  Reduction& reduction_;
  const int rank_;
  const int size_;

  std::size_t reserved_ = 0;  // Bytes of this rank's staging buffer, from its begin.
  std::size_t cursor_ = 0;    // Bytes used in each staging buffer so far.
  std::size_t chunks_ = 0;    // Chunks of the current collective.
  std::size_t stride_ = 0;    // Bytes from one chunk to the next.
  std::size_t part_ = 0;      // Elements of a part in one chunk.
  std::size_t element_ = 0;
  bool small_ = false;
  bool large_ = false;  // Too large for caches.
};

}  // namespace lockstep::comm
