// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/in_place.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/comm/shm/ownership.h"
#include "lockstep/comm/shm/staging.h"

namespace lockstep::comm {
namespace {

// Larger groups were not measured.
constexpr int most_readers = 4;

// Below these sizes, copies through staging buffers are faster than a system call.
constexpr std::size_t least_part_read = std::size_t{32} << 10;
constexpr std::size_t least_broadcast_read = std::size_t{64} << 10;

// Most data to read when several ranks read the same, or one rank reads for all. Above, staging
// buffers are faster: they stay in cache, and other cores do half the work.
constexpr std::size_t most_read_together = std::size_t{512} << 10;
constexpr std::size_t most_read_by_one = std::size_t{1} << 20;

// Below, staging buffers reduce faster.
constexpr std::size_t least_reduced_read = std::size_t{2} << 20;

// Bytes read at once from a peer before a reduction; they stay in the second-level cache.
constexpr std::size_t chunk_bytes = std::size_t{256} << 10;

// Bytes read before a rank checks whether the group is over: about a millisecond.
constexpr std::size_t most_read_at_once = std::size_t{8} << 20;

void copy_part(const Collective& collective, std::byte* to, const std::byte* from,
               std::size_t bytes) {
  if (to == from || bytes == 0) return;
  if (std::max(collective.input.bytes(), collective.output.bytes()) > too_large_for_caches)
    copy_past_caches(to, from, bytes, false);
  else
    copy_bytes(to, from, bytes);
}

}  // namespace

bool can_read_inputs(Operation operation) {
  return operation == Operation::all_gather || operation == Operation::gather ||
         operation == Operation::reduce_scatter || operation == Operation::all_to_all;
}

bool can_write_outputs(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce ||
         operation == Operation::broadcast || operation == Operation::all_gather ||
         operation == Operation::scatter || operation == Operation::all_to_all;
}

bool reads_outside(const Collective& collective, int ranks, bool crowded) {
  if (ranks > most_readers) return false;
  const Operation operation = collective.signature.operation;
  const std::size_t bytes = Staging::bytes_of(collective, ranks);
  const auto n = static_cast<std::size_t>(ranks);
  // The mean part. In all_to_all, uneven parts are those of all ranks.
  const bool is_table = operation == Operation::all_to_all && collective.signature.layout != 0;
  const bool has_long_parts = bytes / (is_table ? n * n : n) >= least_part_read;
  const std::size_t most = ranks == 2 && !crowded ? most_read_by_one : most_read_together;
  switch (operation) {
    case Operation::scatter:
    case Operation::all_to_all:
      return has_long_parts;
    case Operation::all_gather:
      return has_long_parts && (ranks == 2 || bytes <= most_read_together);
    case Operation::gather:
      return has_long_parts && bytes <= most;
    case Operation::broadcast:
      return !crowded && bytes >= least_broadcast_read && bytes <= most;
    case Operation::all_reduce:  // More ranks with a core each were not measured.
      return ranks == 2 && !crowded && bytes >= least_reduced_read;
    default:
      return false;
  }
}

bool InPlace::is_outside(int rank) const {
  const RankBlock::Entry& entry = barrier_.entry(rank);
  return Regions::is_outside(entry.input) || Regions::is_outside(entry.output);
}

bool InPlace::is_possible() const {
  return can_reach(&RankBlock::Entry::input) || can_reach(&RankBlock::Entry::output);
}

bool InPlace::can_reach(std::uint64_t RankBlock::Entry::*place) const {
  const std::uint64_t kind = Regions::kind_of(barrier_.entry(0).*place);
  for (int peer = 1; peer < size_; ++peer)
    if (Regions::kind_of(barrier_.entry(peer).*place) != kind) return false;
  return kind != 0;
}

std::byte* InPlace::input_of(int rank) const {
  return regions_.address(barrier_.entry(rank).input, rank);
}

std::byte* InPlace::output_of(int rank) const {
  return regions_.address(barrier_.entry(rank).output, rank);
}

bool InPlace::run(const Collective& collective) {
  const Signature& signature = collective.signature;
  switch (signature.operation) {
    case Operation::all_reduce:
      if (is_outside(rank_)) return all_reduce_outside(collective);
      [[fallthrough]];
    case Operation::reduce:
      reduce_slice(collective);
      return true;
    case Operation::reduce_scatter:
      reduce_part(collective);
      return true;
    case Operation::broadcast:
      return fetch(collective, signature.root, barrier_.entry(signature.root).output, 0,
                   {0, signature.count});
    case Operation::all_gather:
    case Operation::gather:
    case Operation::scatter:
    case Operation::all_to_all:
      if (can_reach(&RankBlock::Entry::input)) return read(collective);
      write(collective);
      return true;
    default:
      check(false, "shared memory was asked for an operation that it does not do in place");
      return true;
  }
}

// Into all buffers or the root's.
void InPlace::reduce_slice(const Collective& collective) {
  const Signature& signature = collective.signature;
  const std::size_t element = size_of(signature.dtype);
  const Range slice = slice_of(signature.count, element, rank_, size_);
  reduction_.begin();
  for (int peer = 0; peer < size_; ++peer) {
    std::byte* const theirs = output_of(peer) + slice.begin * element;
    reduction_.set_source(peer, theirs);
    if (signature.operation == Operation::all_reduce || peer == signature.root)
      reduction_.add_target(theirs);
  }
  reduction_.run(signature, slice.count());
}

// Reduces this rank's slice, then copies the reduced parts of other slices. The rest is unchanged.
bool InPlace::all_reduce_outside(const Collective& collective) {
  const bool is_reduced = reduce_slice_outside(collective);
  barrier_.step(collective);
  if (!is_reduced) return false;
  const Signature& signature = collective.signature;
  for (int i = 1; i < size_; ++i) {
    const int peer = (rank_ + i) % size_;
    Range theirs = slice_of(signature.count, size_of(signature.dtype), peer, size_);
    theirs.end = theirs.begin + segment_.block(peer).reduced;
    if (!fetch(collective, peer, barrier_.entry(peer).output, theirs.begin, theirs)) return false;
  }
  return true;
}

bool InPlace::reduce_slice_outside(const Collective& collective) {
  const Signature& signature = collective.signature;
  const std::size_t element = size_of(signature.dtype);
  const Range slice = slice_of(signature.count, element, rank_, size_);
  const auto peers = static_cast<std::size_t>(size_ - 1);
  if (chunks_.empty()) chunks_.resize(peers * chunk_bytes);
  std::uint64_t& reduced = segment_.block(rank_).reduced;  // Elements, from the slice's begin.
  for (reduced = 0; reduced < slice.count();) {
    const std::size_t begin = slice.begin + reduced;
    const std::size_t count = std::min(chunk_bytes / element, slice.end - begin);
    std::byte* const own = Bytes(collective.output).at(begin);
    std::byte* chunk = chunks_.data();
    reduction_.begin();
    reduction_.set_source(rank_, own);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const std::uint64_t theirs = Regions::address_outside(barrier_.entry(peer).output);
      if (!memory_.read(peer, chunk, theirs + begin * element, count * element)) return false;
      reduction_.set_source(peer, chunk);
      chunk += chunk_bytes;
    }
    reduction_.add_target(own);
    reduction_.run(signature, count);
    reduced += count;
  }
  return true;
}

void InPlace::reduce_part(const Collective& collective) {
  const Range mine = Parts(collective, size_).of(rank_);
  reduction_.begin();
  for (int peer = 0; peer < size_; ++peer)
    reduction_.set_source(peer, input_of(peer) + mine.begin * size_of(collective.signature.dtype));
  reduction_.add_target(Bytes(collective.output).at(0));
  reduction_.run(collective.signature, mine.count());
}

// Copies elements of `peer` from `from` on to elements `to` of the output.
bool InPlace::fetch(const Collective& collective, int peer, std::uint64_t location,
                    std::size_t from, Range to) const {
  const std::size_t element = size_of(collective.signature.dtype);
  std::byte* const target = Bytes(collective.output).at(to.begin);
  const std::size_t bytes = to.count() * element;
  if (bytes == 0) return true;
  if (!Regions::is_outside(location)) {
    copy_part(collective, target, regions_.address(location, peer) + from * element, bytes);
    return true;
  }
  const std::uint64_t address = Regions::address_outside(location) + from * element;
  if (peer != rank_) return read_outside(collective, peer, target, address, bytes);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): what Regions::outside() was given.
  copy_part(collective, target, reinterpret_cast<const std::byte*>(address), bytes);
  return true;
}

bool InPlace::read_outside(const Collective& collective, int peer, std::byte* to,
                           std::uint64_t from, std::size_t bytes) const {
  for (std::size_t at = 0; at < bytes; at += most_read_at_once) {
    if (at > 0) barrier_.throw_if_over(collective);
    const std::size_t now = std::min(bytes - at, most_read_at_once);
    if (!memory_.read(peer, to + at, from + at, now)) return false;
  }
  return true;
}

// In all_gather, gather, scatter and all_to_all.
bool InPlace::read(const Collective& collective) const {
  const Operation operation = collective.signature.operation;
  const int root = collective.signature.root;
  if (operation == Operation::gather && rank_ != root) return true;
  const Parts parts(collective, size_);
  for (int i = 0; i < size_; ++i) {
    const int peer = (rank_ + i) % size_;  // Ranks start at different peers.
    std::size_t from = 0;
    Range to = parts.of(peer);
    if (operation == Operation::all_to_all) {
      from = parts.sent(peer, rank_).begin;
      to = parts.received(peer, rank_);
    } else if (operation == Operation::scatter) {
      if (peer != root) continue;
      from = parts.of(rank_).begin;
      to = {0, parts.of(rank_).count()};
    }
    if (!fetch(collective, peer, barrier_.entry(peer).input, from, to)) return false;
  }
  return true;
}

// In all_gather, scatter and all_to_all.
void InPlace::write(const Collective& collective) {
  const Signature& signature = collective.signature;
  const std::size_t element = size_of(signature.dtype);
  if (signature.operation == Operation::scatter && rank_ != signature.root) return;
  const Parts parts(collective, size_);
  const auto part_for = [&](int peer) {
    switch (signature.operation) {
      case Operation::all_to_all:
        return parts.sent(rank_, peer);
      case Operation::scatter:
        return parts.of(peer);
      default:
        return Range{0, parts.of(rank_).count()};
    }
  };
  const auto place_at = [&](int peer) -> std::size_t {
    switch (signature.operation) {
      case Operation::all_to_all:
        return parts.received(rank_, peer).begin;
      case Operation::scatter:
        return 0;
      default:
        return parts.of(rank_).begin;
    }
  };
  for (int i = 0; i < size_; ++i) {
    const int peer = (rank_ + i) % size_;
    const Range part = part_for(peer);
    copy_part(collective, output_of(peer) + place_at(peer) * element,
              Bytes(collective.input).at(part.begin), part.count() * element);
  }
}

}  // namespace lockstep::comm
