// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/staging.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/comm/shm/ownership.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t small_bytes = 4 << 10;

// Whether a rank has different data for each peer, in slots.
bool has_slots(Operation operation) { return has_input_parts(operation); }

// Not by shape: operations without code here are composed of others.
bool moves_data(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::broadcast ||
         operation == Operation::all_gather || operation == Operation::reduce ||
         operation == Operation::reduce_scatter || operation == Operation::gather ||
         operation == Operation::scatter || operation == Operation::all_to_all;
}

bool has_equal_parts(const Signature& signature) {
  return signature.layout == 0 &&
         (has_input_parts(signature.operation) || has_output_parts(signature.operation));
}

// Whole cache lines, so that each slot starts with one.
std::size_t most_part_bytes(Operation operation, int ranks) {
  if (!has_slots(operation)) return GroupSegment::chunk_bytes;
  const std::size_t bytes = GroupSegment::chunk_bytes / static_cast<std::size_t>(ranks);
  return bytes / cache_line * cache_line;
}

}  // namespace

bool Staging::does(Operation operation) {  // Barriers are complete when all ranks have entered.
  return moves_data(operation) || shape_of(operation) == OperationShape::barrier;
}

std::size_t Staging::bytes_of(const Collective& collective, int ranks) {
  const Signature& signature = collective.signature;
  const auto parts = has_equal_parts(signature) ? static_cast<std::size_t>(ranks) : 1;
  return signature.count * parts * size_of(signature.dtype);
}

// Ranks with different calls may differ here, but then stop at the rendezvous.
bool Staging::is_small(const Collective& collective, int ranks) {
  return bytes_of(collective, ranks) <= small_bytes;
}

void Staging::begin(const Collective& collective) {
  const Operation operation = collective.signature.operation;
  chunks_ = 0;
  if (!moves_data(operation) || collective.signature.count == 0) return;
  element_ = size_of(collective.signature.dtype);
  small_ = is_small(collective, size_);
  const std::size_t longest = Parts(collective, size_).longest();
  const std::size_t part_bytes =
      std::min(most_part_bytes(operation, size_), padded(longest * element_));
  part_ = std::max<std::size_t>(1, part_bytes / element_);
  chunks_ = (longest + part_ - 1) / part_;
  large_ = collective.output.bytes() > too_large_for_caches;

  // A collective's chunks lie at multiples of their stride: none crosses the buffer's end.
  const std::size_t capacity = GroupSegment::staging_bytes(size_);
  const std::size_t bytes =
      part_bytes * (has_slots(operation) ? static_cast<std::size_t>(size_) : 1);
  stride_ = chunks_ > 1 ? GroupSegment::chunk_bytes : bytes;
  check(bytes <= GroupSegment::chunk_bytes, "a chunk does not fit its part of the staging buffer");
  if (chunks_ > 1)
    cursor_ = (cursor_ + stride_ - 1) / stride_ * stride_;
  else if (cursor_ % capacity + stride_ > capacity)
    cursor_ += capacity - cursor_ % capacity;
}

std::byte* Staging::buffer(int rank, std::size_t chunk) const {
  return segment_.staging(rank) + (cursor_ + chunk * stride_) % GroupSegment::staging_bytes(size_);
}

std::byte* Staging::slot(int rank, int to, std::size_t chunk) const {
  return buffer(rank, chunk) + static_cast<std::size_t>(to) * padded(part_ * element_);
}

Range Staging::in_chunk(std::size_t count, std::size_t chunk) const {
  const std::size_t begin = std::min(count, chunk * part_);
  return {begin, std::min(count, begin + part_)};
}

// A slice has the same position in every chunk, including a shorter last one.
Range Staging::slice_in(Range chunk, int rank) const {
  const Range slice = slice_of(part_, element_, rank, size_);
  return {std::min(slice.begin, chunk.count()), std::min(slice.end, chunk.count())};
}

// Small data stays in all ranks' caches, and is soon written again.
void Staging::take_bytes(std::byte* to, const std::byte* from, std::size_t bytes,
                         bool only_reader) const {
  if (large_) return copy_past_caches(to, from, bytes, only_reader);
  only_reader && !small_ ? copy_taking_over(to, from, bytes) : copy_bytes(to, from, bytes);
}

// Copies from this rank's own input.
void Staging::keep_bytes(std::byte* to, const std::byte* from, std::size_t bytes) const {
  if (to == from) return;
  large_ ? copy_past_caches(to, from, bytes, false) : copy_bytes(to, from, bytes);
}

// At least doubles the reserved memory, because each reservation checks the host's free memory.
void Staging::reserve() {
  constexpr std::size_t chunk = GroupSegment::chunk_bytes;
  const std::size_t capacity = GroupSegment::staging_bytes(size_);
  const std::size_t needed = std::min(capacity, cursor_ + chunks_ * stride_);
  if (needed <= reserved_) return;
  const std::size_t whole = (needed + chunk - 1) / chunk * chunk;
  const std::size_t end = std::min(capacity, std::max(whole, 2 * reserved_));
  reserve_pages("a staging buffer", segment_.staging(rank_) + reserved_, end - reserved_, size_);
  reserved_ = end;
}

bool Staging::reduces_at_once(const Collective& collective) const {
  return small_ && collective.signature.operation == Operation::all_reduce;
}

void Staging::put_first(const Collective& collective) {
  if (chunks_ == 0) return;
  reserve();
  if (reduces_at_once(collective))
    copy_bytes(buffer(rank_, 0), Bytes(collective.output).at(0), collective.output.bytes());
  else
    put(collective, 0);
}

void Staging::run(const Collective& collective) {
  const Operation operation = collective.signature.operation;
  if (chunks_ == 0)
    return check(does(operation),
                 "staging buffers were asked for an operation that they do not do");
  if (reduces_at_once(collective)) {
    reduce_at_once(collective);
  } else if (operation == Operation::all_reduce) {
    all_reduce(collective);
  } else {
    for (std::size_t chunk = 0; chunk < chunks_; ++chunk) {
      if (chunk > 0) {
        put(collective, chunk);
        barrier_.step(collective);
      }
      take(collective, chunk);
    }
  }
  cursor_ += chunks_ * stride_;
}

void Staging::finish_all_reduce(const Collective& collective) {
  const auto run_part = [&](Operation operation, int root, Range range) {
    Collective part = collective;
    part.signature.operation = operation;
    part.signature.root = root;
    part.signature.count = part.output.count = range.count();
    part.output.data = Bytes(collective.output).at(range.begin);
    begin(part);
    put_first(part);
    barrier_.step(part);
    run(part);
  };
  const Signature& signature = collective.signature;
  for (int owner = 0; owner < size_; ++owner) {
    const Range slice = slice_of(signature.count, size_of(signature.dtype), owner, size_);
    const std::size_t end = slice.begin + segment_.block(owner).reduced;
    run_part(Operation::broadcast, owner, {slice.begin, end});
    run_part(Operation::all_reduce, signature.root, {end, slice.end});
  }
}

void Staging::reduce_at_once(const Collective& collective) {
  reduction_.begin();
  for (int peer = 0; peer < size_; ++peer) reduction_.set_source(peer, buffer(peer, 0));
  reduction_.add_target(Bytes(collective.output).at(0));
  reduction_.run(collective.signature, collective.output.count);
}

// One rendezvous per chunk.
void Staging::all_reduce(const Collective& collective) {
  for (std::size_t chunk = 0; chunk <= chunks_; ++chunk) {
    if (chunk < chunks_) combine_slice(collective, chunk);
    if (chunk > 0) take_slices(collective, chunk - 1);
    if (chunk + 1 < chunks_) put(collective, chunk + 1);
    if (chunk < chunks_) barrier_.step(collective);
  }
}

void Staging::put(const Collective& collective, std::size_t chunk) {
  const Signature& signature = collective.signature;
  const Parts parts(collective, size_);
  const bool is_root = rank_ == signature.root;
  const auto put_whole = [&](const Buffer& from, std::size_t count) {
    const Range range = in_chunk(count, chunk);
    copy_bytes(buffer(rank_, chunk), Bytes(from).at(range.begin), range.count() * element_);
  };
  const auto put_slots = [&](auto part_for) {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const Range part = part_for(peer);
      const Range range = in_chunk(part.count(), chunk);
      copy_bytes(slot(rank_, peer, chunk), Bytes(collective.input).at(part.begin + range.begin),
                 range.count() * element_);
    }
  };
  switch (signature.operation) {
    case Operation::all_reduce:
      return put_around_slice(collective, chunk);
    case Operation::broadcast:
      return is_root ? put_whole(collective.output, signature.count) : void();
    case Operation::reduce:
      return is_root ? void() : put_whole(collective.output, signature.count);
    case Operation::gather:
      return is_root ? void() : put_whole(collective.input, parts.of(rank_).count());
    case Operation::all_gather:
      return put_whole(collective.input, parts.of(rank_).count());
    case Operation::scatter:
      return is_root ? put_slots([&](int peer) { return parts.of(peer); }) : void();
    case Operation::reduce_scatter:
      return put_slots([&](int peer) { return parts.of(peer); });
    case Operation::all_to_all:
      return put_slots([&](int peer) { return parts.sent(rank_, peer); });
    default:
      check(false, "there is nothing to put for this operation");
  }
}

// All but this rank's slice, whose place holds the result.
void Staging::put_around_slice(const Collective& collective, std::size_t chunk) {
  const Range range = in_chunk(collective.signature.count, chunk);
  const Range own = slice_in(range, rank_);
  const Bytes data(collective.output);
  std::byte* const to = buffer(rank_, chunk);
  copy_bytes(to, data.at(range.begin), own.begin * element_);
  copy_bytes(to + own.end * element_, data.at(range.begin + own.end),
             (range.count() - own.end) * element_);
}

// Into this rank's memory and staging buffer.
void Staging::combine_slice(const Collective& collective, std::size_t chunk) {
  const Range range = in_chunk(collective.signature.count, chunk);
  const Range slice = slice_in(range, rank_);
  std::byte* const own = Bytes(collective.output).at(range.begin + slice.begin);
  reduction_.begin();
  for (int peer = 0; peer < size_; ++peer)
    reduction_.set_source(peer, peer == rank_ ? own : buffer(peer, chunk) + slice.begin * element_);
  reduction_.add_target(own);
  reduction_.add_target(buffer(rank_, chunk) + slice.begin * element_);
  reduction_.run_taking_over(collective.signature, slice.count(), rank_);
}

void Staging::take(const Collective& collective, std::size_t chunk) {
  const bool is_root = rank_ == collective.signature.root;
  switch (collective.signature.operation) {
    case Operation::broadcast:
      return is_root ? void() : take_whole(collective, chunk, size_ == 2);
    case Operation::all_gather:
      return take_parts(collective, chunk, size_ == 2);
    case Operation::gather:
      return is_root ? take_parts(collective, chunk, true) : void();
    case Operation::reduce:
      return is_root ? reduce_part(collective, chunk) : void();
    case Operation::reduce_scatter:
      return reduce_part(collective, chunk);
    case Operation::scatter:
      return take_whole(collective, chunk, true);
    case Operation::all_to_all:
      return take_parts(collective, chunk, true);
    default:
      check(false, "there is nothing to take for this operation");
  }
}

// The target lines are in this rank's cache, from the copy to its staging buffer.
void Staging::take_slices(const Collective& collective, std::size_t chunk) {
  const auto copy = size_ == 2 ? copy_taking_over : copy_bytes;
  const Range range = in_chunk(collective.signature.count, chunk);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Range slice = slice_in(range, peer);
    copy(Bytes(collective.output).at(range.begin + slice.begin),
         buffer(peer, chunk) + slice.begin * element_, slice.count() * element_);
  }
}

// Data from the root only.
void Staging::take_whole(const Collective& collective, std::size_t chunk, bool only_reader) {
  const bool scatters = collective.signature.operation == Operation::scatter;
  const int root = collective.signature.root;
  const Range range = in_chunk(collective.output.count, chunk);
  std::byte* const to = Bytes(collective.output).at(range.begin);
  const std::size_t bytes = range.count() * element_;
  if (rank_ == root) {
    const Range own = Parts(collective, size_).of(rank_);
    return keep_bytes(to, Bytes(collective.input).at(own.begin + range.begin), bytes);
  }
  take_bytes(to, scatters ? slot(root, rank_, chunk) : buffer(root, chunk), bytes, only_reader);
}

// Data from all ranks, including this one.
void Staging::take_parts(const Collective& collective, std::size_t chunk, bool only_reader) {
  const bool exchanges = collective.signature.operation == Operation::all_to_all;
  const Parts parts(collective, size_);
  for (int peer = 0; peer < size_; ++peer) {
    const Range part = exchanges ? parts.received(peer, rank_) : parts.of(peer);
    const Range range = in_chunk(part.count(), chunk);
    std::byte* const to = Bytes(collective.output).at(part.begin + range.begin);
    const std::size_t bytes = range.count() * element_;
    if (peer == rank_) {
      const std::size_t begin = exchanges ? parts.sent(rank_, rank_).begin : 0;
      keep_bytes(to, Bytes(collective.input).at(begin + range.begin), bytes);
    } else {
      take_bytes(to, exchanges ? slot(peer, rank_, chunk) : buffer(peer, chunk), bytes,
                 only_reader);
    }
  }
}

void Staging::reduce_part(const Collective& collective, std::size_t chunk) {
  const bool scatters = collective.signature.operation == Operation::reduce_scatter;
  const Range range = in_chunk(collective.output.count, chunk);
  const Bytes output(collective.output);
  const std::size_t begin = scatters ? Parts(collective, size_).of(rank_).begin : 0;
  const Bytes own(scatters ? collective.input : collective.output);
  reduction_.begin();
  for (int peer = 0; peer < size_; ++peer) {
    const std::byte* theirs = scatters ? slot(peer, rank_, chunk) : buffer(peer, chunk);
    reduction_.set_source(peer, peer == rank_ ? own.at(begin + range.begin) : theirs);
  }
  reduction_.add_target(output.at(range.begin));
  reduction_.run_taking_over(collective.signature, range.count(), rank_);
}

}  // namespace lockstep::comm
