// How data of any memory gets from rank to rank: through rooms that stay in cache.
//
// Data go in chunks. Each rank puts its part of a chunk into its room, all meet, each takes what is
// for it from the rooms of the others; while one chunk is taken the next one is put. Of an
// all_reduce every rank combines its slice of a chunk in between.
//
// Why nobody overwrites what another one still reads: a rank that puts a chunk has met all others
// since the chunk two before it was to be taken (three, of an all_reduce), and every rank takes a
// chunk before it comes to the next meeting but one. So three chunks in a row must lie apart; where
// a collective begins anew at the begin of the room, or of a chunk, less than one more is left out.
// A room is four chunks at least.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/shm/group_segment.h"
#include "lockstep/comm/shm/meeting.h"
#include "lockstep/comm/shm/parts.h"
#include "lockstep/comm/shm/reduction.h"

namespace lockstep {

class Passage {
 public:
  // All must outlive it.
  Passage(const GroupSegment& segment, Meeting& meeting, Reduction& reduction, int rank, int ranks)
      : segment_(segment), meeting_(meeting), reduction_(reduction), rank_(rank), size_(ranks) {}

  // What is called small: it is faster to copy that than to meet once more.
  static bool is_small(const Collective& collective, int ranks);

  // Before run(), on all ranks alike: where in the rooms this collective will pass.
  void begin(const Collective& collective);

  // The first chunk. To be called by every rank before all meet, and before run().
  void put_first(const Collective& collective);

  // The rest.
  void run(const Collective& collective);

 private:
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

  // What of a part of `count` elements is in a chunk, counted from the begin of the part.
  Range in_chunk(std::size_t count, std::size_t chunk) const;
  // The slice of an all_reduce's chunk that `rank` combines.
  Range slice_in(Range chunk, int rank) const;
  std::byte* room(int rank, std::size_t chunk) const;
  std::byte* slot(int rank, int to, std::size_t chunk) const;
  void take_bytes(std::byte* to, const std::byte* from, std::size_t bytes, bool only_reader) const;
  void keep_bytes(std::byte* to, const std::byte* from, std::size_t bytes) const;

  const GroupSegment& segment_;
  Meeting& meeting_;
  Reduction& reduction_;
  const int rank_;
  const int size_;

  std::size_t cursor_ = 0;   // Bytes of the rooms that were used since the begin.
  std::size_t chunks_ = 0;   // Of the current collective,
  std::size_t stride_ = 0;   // bytes of a room from one chunk to the next,
  std::size_t part_ = 0;     // elements of a part in one chunk,
  std::size_t element_ = 0;  // and bytes of an element.
  bool small_ = false;
  bool large_ = false;  // Too large for caches.
};

}  // namespace lockstep
