// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/in_place.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/comm/shm/ownership.h"
#include "lockstep/comm/shm/parts.h"

namespace lockstep::comm {
namespace {

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

bool InPlace::is_possible() const {
  return can_reach(&Lane::Entry::input) || can_reach(&Lane::Entry::output);
}

bool InPlace::can_reach(std::uint64_t Lane::Entry::*place) const {
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

void InPlace::run(const Collective& collective) {
  switch (collective.signature.operation) {
    case Operation::all_reduce:
    case Operation::reduce:
      return reduce_slice(collective);
    case Operation::reduce_scatter:
      return reduce_part(collective);
    case Operation::broadcast:
      if (rank_ != collective.signature.root)
        copy_part(collective, Bytes(collective.output).at(0), output_of(collective.signature.root),
                  collective.output.bytes());
      return;
    case Operation::all_gather:
    case Operation::gather:
    case Operation::scatter:
    case Operation::all_to_all:
      return can_reach(&Lane::Entry::input) ? read(collective) : write(collective);
    default:
      check(false, "shared memory was asked for an operation that it does not do in place");
  }
}

// Reduces this rank's slice of all buffers, into all buffers or the root's.
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

void InPlace::reduce_part(const Collective& collective) {
  const Range mine = Parts(collective, size_).of(rank_);
  reduction_.begin();
  for (int peer = 0; peer < size_; ++peer)
    reduction_.set_source(peer, input_of(peer) + mine.begin * size_of(collective.signature.dtype));
  reduction_.add_target(Bytes(collective.output).at(0));
  reduction_.run(collective.signature, mine.count());
}

// Reads this rank's data in all_gather, gather and all_to_all from all inputs.
void InPlace::read(const Collective& collective) {
  const Signature& signature = collective.signature;
  const std::size_t element = size_of(signature.dtype);
  if (signature.operation == Operation::gather && rank_ != signature.root) return;
  const Parts parts(collective, size_);
  for (int i = 0; i < size_; ++i) {
    const int peer = (rank_ + i) % size_;  // Not all ranks begin to read from the same one.
    const bool exchanges = signature.operation == Operation::all_to_all;
    const Range from = exchanges ? parts.sent(peer, rank_) : Range{0, 0};
    const Range to = exchanges ? parts.received(peer, rank_) : parts.of(peer);
    copy_part(collective, Bytes(collective.output).at(to.begin),
              input_of(peer) + from.begin * element, to.count() * element);
  }
}

// Writes this rank's data in all_gather, scatter and all_to_all to the others' outputs.
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
