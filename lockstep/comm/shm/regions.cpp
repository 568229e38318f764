// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/regions.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"

namespace lockstep::comm {
namespace {

// Registered memory: a bit for a rank's own region, its number, the offset.
constexpr std::uint64_t own_region = std::uint64_t{1} << 63;
constexpr int offset_bits = 39;
constexpr std::uint64_t offset_mask = (std::uint64_t{1} << offset_bits) - 1;

// Unregistered memory: a byte of ones, then the address, of at most 56 bits on x86-64 and 52 on
// AArch64. A tagged pointer (MTE, LAM) has no location.
constexpr std::uint64_t outside_mark = std::uint64_t{0xff} << 56;

// A region's location must not have the mark.
constexpr std::uint64_t most_regions = (outside_mark & ~own_region) >> offset_bits;

std::uint64_t number_in(std::uint64_t location) { return (location & ~own_region) >> offset_bits; }

void check_reachable(std::size_t stride) {
  check(stride <= offset_mask, "a region of registered memory is too large");
}

// A separate owner: the memory may have others.
std::shared_ptr<const void> handle_of(SharedMemory memory) {
  return std::make_shared<const SharedMemory>(std::move(memory));
}

}  // namespace

RegionTable::RegionTable(int slot, int slots) : slot_(slot), slots_(slots) {}

std::uint64_t RegionTable::next_number() {
  const std::uint64_t made = ++made_;  // From 1: a location is never 0.
  const std::uint64_t number =
      made * static_cast<std::uint64_t>(slots_) + static_cast<std::uint64_t>(slot_);
  check(number < most_regions, "too much registered memory was allocated, chunk by chunk");
  return number;
}

void RegionTable::add(Region region) {
  const std::lock_guard lock(mutex_);
  add_locked(std::move(region));
}

void RegionTable::add_locked(Region region) {
  auto all = std::make_shared<All>();
  for (const Region& old : *all_)
    if (old.kept || !old.owner.expired()) all->push_back(old);
  all->push_back(std::move(region));
  all_ = std::move(all);
  version_.fetch_add(1, std::memory_order_release);
}

std::shared_ptr<const RegionTable::All> RegionTable::all() const {
  const std::lock_guard lock(mutex_);
  return all_;
}

void RegionTable::add_peers(std::uint64_t number, int slot, SharedMemory memory) {
  Region region{.number = number, .is_common = false, .bytes = 0, .parts = {}, .owner = {}};
  region.parts.resize(static_cast<std::size_t>(slots_));
  region.parts[static_cast<std::size_t>(slot)] = memory.get();
  region.kept = std::move(memory);
  const std::lock_guard lock(mutex_);
  if (std::ranges::none_of(*all_, [&](const Region& known) { return known.number == number; }))
    add_locked(std::move(region));
}

std::string RegionTable::key_of(std::uint64_t number) { return fmt::format("region {}", number); }

Regions::Regions(std::shared_ptr<Peers> peers, std::chrono::milliseconds timeout,
                 std::function<void(int rank)> watch)
    : peers_(std::move(peers)),
      timeout_(timeout),
      watch_(std::move(watch)),
      table_(peers_->regions()),
      all_(table_.all()),
      last_(static_cast<std::size_t>(peers_->size())) {}

std::size_t Regions::stride_of(std::size_t bytes) { return whole_pages(bytes); }

std::size_t Regions::bytes_for(std::size_t bytes, int ranks) {
  return stride_of(bytes) * static_cast<std::size_t>(ranks);
}

RegisteredMemory Regions::add_common(std::uint64_t number, SharedMemory memory, std::size_t bytes) {
  const std::size_t stride = stride_of(bytes);
  check_reachable(stride);
  Region region{.number = number, .is_common = true, .bytes = stride, .parts = {}, .owner = {}};
  region.parts.resize(static_cast<std::size_t>(table_.slots()));
  for (int rank = 0; rank < peers_->size(); ++rank)
    region.parts[static_cast<std::size_t>(peers_->slot(rank))] =
        memory.get() + static_cast<std::size_t>(rank) * stride;
  std::byte* const mine = region.parts[static_cast<std::size_t>(table_.slot())];
  const auto owner = handle_of(std::move(memory));
  region.owner = owner;
  table_.add(std::move(region));
  return RegisteredMemory(owner, mine, bytes);
}

void Regions::refresh() {
  const std::uint64_t version = table_.version();
  if (version == version_) return;
  version_ = version;  // Before all(): the worst case is one more refresh.
  all_ = table_.all();
}

std::uint64_t Regions::locate(const Buffer& buffer) {
  refresh();
  const auto* begin = static_cast<const std::byte*>(buffer.data);
  const auto slot = static_cast<std::size_t>(table_.slot());
  for (const Region& region : *all_) {
    const std::byte* const mine = region.parts[slot];
    if (mine == nullptr || begin < mine || begin >= mine + region.bytes) continue;
    const auto offset = static_cast<std::uint64_t>(begin - mine);
    if (offset + buffer.bytes() <= region.bytes && !region.owner.expired())
      return (region.is_common ? 0 : own_region) | region.number << offset_bits | offset;
  }
  return 0;
}

std::uint64_t Regions::outside(const Buffer& buffer) {
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(buffer.data);
  return (address & outside_mark) == 0 ? outside_mark | address : 0;
}

bool Regions::is_outside(std::uint64_t location) {
  return (location & outside_mark) == outside_mark;
}

std::uint64_t Regions::address_outside(std::uint64_t location) { return location & ~outside_mark; }

std::uint64_t Regions::kind_of(std::uint64_t location) {
  if (is_outside(location)) return outside_mark;
  return (location & own_region) != 0 ? own_region : number_in(location);
}

std::byte* Regions::address(std::uint64_t location, int rank) {
  const std::uint64_t number = number_in(location);
  auto& [known, part] = last_[static_cast<std::size_t>(rank)];
  if (known != number) {
    part = part_of(number, rank);
    known = number;
  }
  return part + (location & offset_mask);
}

// The region is in the table: this rank has located a buffer in it.
std::byte* Regions::part_of(std::uint64_t number, int rank) {
  const int slot = peers_->slot(rank);
  const auto find = [&]() -> std::byte* {
    refresh();
    for (const Region& region : *all_)
      if (region.number == number) return region.parts[static_cast<std::size_t>(slot)];
    return nullptr;
  };
  if (std::byte* const part = find()) return part;
  table_.add_peers(number, slot,
                   peers_->fetch(rank, RegionTable::key_of(number), page_size(), in(timeout_),
                                 [&] { watch_(rank); }));
  std::byte* const part = find();
  check(part != nullptr, "a peer used registered memory that this rank does not know");
  return part;
}

RegisteredMemory allocate_own_region(Peers& peers, std::size_t bytes) {
  RegionTable& table = peers.regions();
  const std::size_t stride = Regions::stride_of(bytes);
  const std::uint64_t number = table.next_number();
  SharedMemory memory = peers.hand_out(RegionTable::key_of(number), stride);
  check_reachable(stride);
  map_all_pages(memory.get(), stride);
  std::byte* const mine = memory.get();
  const auto owner = handle_of(std::move(memory));
  Region region{.number = number, .is_common = false, .bytes = stride, .parts = {}, .owner = owner};
  region.parts.resize(static_cast<std::size_t>(table.slots()));
  region.parts[static_cast<std::size_t>(table.slot())] = mine;
  table.add(std::move(region));
  return RegisteredMemory(owner, mine, bytes);
}

}  // namespace lockstep::comm
