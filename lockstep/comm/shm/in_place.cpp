// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/in_place.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/comm/shm/ownership.h"
#include "lockstep/comm/shm/parts.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t page = 4096;
constexpr int offset_bits = 40;

std::size_t stride_of(std::size_t bytes) {
  return (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
}

void copy_part(const Collective& collective, std::byte* to, const std::byte* from,
               std::size_t bytes) {
  if (to == from || bytes == 0) return;
  if (std::max(collective.input.bytes(), collective.output.bytes()) > too_large_for_caches)
    copy_past_caches(to, from, bytes, false);
  else
    copy_bytes(to, from, bytes);
}

}  // namespace

std::size_t Regions::bytes_for(std::size_t bytes, int ranks) {
  return stride_of(bytes) * static_cast<std::size_t>(ranks);
}

RegisteredMemory Regions::add(SharedMemory memory, std::size_t bytes, int rank) {
  std::erase_if(regions_, [](const Region& region) { return region.owner.expired(); });
  const std::size_t stride = stride_of(bytes);
  check(
      made_ + 1 < std::uint64_t{1} << (64 - offset_bits) && stride < std::size_t{1} << offset_bits,
      "a registered region is too large, or there are too many");
  std::byte* const all = memory.get();
  std::byte* const mine = all + static_cast<std::size_t>(rank) * stride;
  // A separate owner: the memory itself may have other owners.
  const auto owner = std::make_shared<const SharedMemory>(std::move(memory));
  regions_.push_back({++made_, all, stride, mine, owner});
  return RegisteredMemory(owner, mine, bytes);
}

std::uint64_t Regions::locate(const Buffer& buffer) const {
  const auto* begin = static_cast<const std::byte*>(buffer.data);
  for (const Region& region : regions_) {
    if (begin < region.mine || begin >= region.mine + region.stride) continue;
    const auto offset = static_cast<std::uint64_t>(begin - region.mine);
    const bool within = offset + buffer.bytes() <= region.stride && !region.owner.expired();
    if (within) return region.number << offset_bits | offset;
  }
  return 0;
}

std::byte* Regions::address(std::uint64_t location, int rank) const {
  for (const Region& region : regions_)
    if (region.number == region_of(location))
      return region.all + static_cast<std::size_t>(rank) * region.stride +
             (location & ((std::uint64_t{1} << offset_bits) - 1));
  throw Error(Fault::bug, "a peer used registered memory that this rank does not know");
}

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
  return in_one_region(&Lane::Entry::input) || in_one_region(&Lane::Entry::output);
}

bool InPlace::in_one_region(std::uint64_t Lane::Entry::*place) const {
  const std::uint64_t region = Regions::region_of(barrier_.entry(0).*place);
  for (int peer = 1; peer < size_; ++peer)
    if (Regions::region_of(barrier_.entry(peer).*place) != region) return false;
  return region != 0;
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
      return in_one_region(&Lane::Entry::input) ? read(collective) : write(collective);
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
    const int peer = (rank_ + i) % size_;  // Different start on each rank, so that not all read
                                           // from one.
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
