// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/regions.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/memory.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t page = 4096;

// A location: a bit for a rank's own region, one for a region that not all ranks have mapped, then
// the region's number, then the offset.
constexpr std::uint64_t own_region = std::uint64_t{1} << 63;
constexpr std::uint64_t awaits_mapping = std::uint64_t{1} << 62;
constexpr int offset_bits = 39;
constexpr std::uint64_t offset_mask = (std::uint64_t{1} << offset_bits) - 1;
constexpr std::uint64_t most_regions = awaits_mapping >> offset_bits;

std::uint64_t number_in(std::uint64_t location) {
  return (location & (awaits_mapping - 1)) >> offset_bits;
}

void check_reachable(std::size_t stride) {
  check(stride <= offset_mask, "a region of registered memory is too large");
}

// A separate owner: the memory itself may have other owners.
std::shared_ptr<const void> handle_of(SharedMemory memory) {
  return std::make_shared<const SharedMemory>(std::move(memory));
}

// Goes with the last handle of a rank's own region, which peers may then let go. The copies in a
// fork()ed child are no handles.
struct OwnRegion {
  SharedMemory memory;
  std::string key;
  std::weak_ptr<Peers> peers;
  pid_t pid = this_process();

  OwnRegion(SharedMemory mapped, std::string its_key, std::weak_ptr<Peers> its_peers)
      : memory(std::move(mapped)), key(std::move(its_key)), peers(std::move(its_peers)) {}
  ~OwnRegion() {
    if (pid != this_process()) return;
    RegionHead(memory.get()).end();
    if (const auto strong = peers.lock()) strong->withdraw(key);
  }
  OwnRegion(const OwnRegion&) = delete;
  OwnRegion& operator=(const OwnRegion&) = delete;
};

}  // namespace

// --- RegionHead ----------------------------------------------------------------------------------

std::size_t RegionHead::bytes_for(int slots) {
  return Regions::stride_of(sizeof(std::uint64_t) * (1 + static_cast<std::size_t>(slots) / 64 + 1));
}

void RegionHead::note_mapped(int slot) const {
  words_[1 + slot / 64].fetch_or(std::uint64_t{1} << (slot % 64), std::memory_order_release);
}

bool RegionHead::is_mapped_by(int slot) const {
  const std::uint64_t bits = words_[1 + slot / 64].load(std::memory_order_acquire);
  return (bits >> (slot % 64) & 1) != 0;
}

// --- RegionTable ---------------------------------------------------------------------------------

RegionTable::RegionTable(int slot, int slots) : slot_(slot), slots_(slots) {}

std::uint64_t RegionTable::next_number() {
  const std::uint64_t made = ++made_;  // From 1: a location is never 0.
  const std::uint64_t number =
      made * static_cast<std::uint64_t>(slots_) + static_cast<std::uint64_t>(slot_);
  check(number < most_regions, "too much registered memory was allocated, piece by piece");
  return number;
}

void RegionTable::add(Region region) {
  const std::lock_guard lock(mutex_);
  auto all = std::make_shared<All>();
  for (const Region& old : *all_)
    if (old.kept ? !old.head->has_ended() : !old.owner.expired()) all->push_back(old);
  all->push_back(std::move(region));
  all_ = std::move(all);
  version_.fetch_add(1, std::memory_order_release);
}

std::shared_ptr<const RegionTable::All> RegionTable::all() const {
  const std::lock_guard lock(mutex_);
  return all_;
}

bool RegionTable::knows(std::uint64_t number) const {
  return std::ranges::any_of(*all(), [&](const Region& region) { return region.number == number; });
}

void RegionTable::approach(std::uint64_t number, int slot, Peers& peers) {
  const std::lock_guard lock(mapping_);
  if (!asked_.contains(number) && !knows(number)) ask_for(number, slot, peers);
  map_what_has_come(peers);
}

void RegionTable::ask_for(std::uint64_t number, int slot, Peers& peers) {
  Asked& asked = asked_[number];
  asked.slot = slot;
  try {
    peers.request(key_of(number));
  } catch (const Error& error) {
    give_up(asked, error);
  }
}

// Of all that were asked for: their ranks may not use them again.
void RegionTable::map_what_has_come(Peers& peers) {
  for (auto one = asked_.begin(); one != asked_.end();) {
    const auto& [number, asked] = *one;
    const SharedMemory memory = asked.has_failed ? nullptr : poll(number, one->second, peers);
    if (memory) add_region_of(asked.slot, number, memory);
    one = memory ? asked_.erase(one) : std::next(one);
  }
}

SharedMemory RegionTable::poll(std::uint64_t number, Asked& asked, Peers& peers) {
  try {
    return peers.poll(key_of(number), RegionHead::bytes_for(slots_));
  } catch (const Error& error) {
    give_up(asked, error);
    return nullptr;
  }
}

void RegionTable::give_up(Asked& asked, const Error& error) {
  asked.has_failed = true;
  if (std::exchange(has_warned_, true)) return;
  log(LogLevel::warning,
      fmt::format("registered memory of rank {} cannot be mapped, so collectives copy it: {}",
                  asked.slot, bare_text(error)));
}

void RegionTable::add_region_of(int slot, std::uint64_t number, SharedMemory memory) {
  const RegionHead head(memory.get());
  Region region{.number = number, .is_common = false, .bytes = 0, .parts = {}, .owner = {}};
  region.parts.resize(static_cast<std::size_t>(slots_));
  region.parts[static_cast<std::size_t>(slot)] = memory.get() + RegionHead::bytes_for(slots_);
  region.head = head;
  region.kept = std::move(memory);
  add(std::move(region));
  head.note_mapped(slot_);
}

std::string RegionTable::key_of(std::uint64_t number) { return fmt::format("region {}", number); }

// --- Regions -------------------------------------------------------------------------------------

Regions::Regions(std::shared_ptr<Peers> peers)
    : peers_(std::move(peers)),
      table_(peers_->regions()),
      all_(table_.all()),
      last_(static_cast<std::size_t>(peers_->size())) {}

std::size_t Regions::stride_of(std::size_t bytes) {
  return (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
}

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
  version_ = version;  // Before all(): at worst it is refreshed once more.
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
    if (offset + buffer.bytes() > region.bytes || region.owner.expired()) continue;
    const std::uint64_t location = region.number << offset_bits | offset;
    if (region.is_common) return location;
    return location | own_region | (is_mapped_by_all(*region.head) ? 0 : awaits_mapping);
  }
  return 0;
}

bool Regions::is_mapped_by_all(const RegionHead& head) const {
  for (int rank = 0; rank < peers_->size(); ++rank)
    if (!head.is_mapped_by(peers_->slot(rank))) return false;
  return true;
}

std::uint64_t Regions::kind_of(std::uint64_t location) {
  if ((location & awaits_mapping) != 0) return 0;
  return (location & own_region) != 0 ? own_region : number_in(location);
}

void Regions::approach(std::uint64_t location, int rank) {
  if ((location & awaits_mapping) != 0 && rank != peers_->rank())
    table_.approach(number_in(location), peers_->slot(rank), *peers_);
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

std::byte* Regions::part_of(std::uint64_t number, int rank) {
  refresh();
  const auto slot = static_cast<std::size_t>(peers_->slot(rank));
  const auto found = std::ranges::find(*all_, number, &Region::number);
  check(found != all_->end() && found->parts[slot] != nullptr,
        "a peer used registered memory that this rank does not know");
  return found->parts[slot];
}

// --- Own regions ---------------------------------------------------------------------------------

RegisteredMemory allocate_own_region(const std::shared_ptr<Peers>& peers, std::size_t bytes) {
  RegionTable& table = peers->regions();
  const std::size_t stride = Regions::stride_of(bytes);
  const std::size_t before = RegionHead::bytes_for(table.slots());
  const std::uint64_t number = table.next_number();
  const std::string key = RegionTable::key_of(number);
  SharedMemory memory =
      peers->offer(key, before + stride, table.slots() > 1 ? Peers::everybody : 0);
  check_reachable(stride);
  map_all_pages(memory.get(), before + stride);
  std::byte* const mine = memory.get() + before;
  const RegionHead head(memory.get());
  head.note_mapped(table.slot());
  const auto owner = std::make_shared<const OwnRegion>(std::move(memory), key, peers);
  Region region{.number = number, .is_common = false, .bytes = stride, .parts = {}, .owner = owner};
  region.parts.resize(static_cast<std::size_t>(table.slots()));
  region.parts[static_cast<std::size_t>(table.slot())] = mine;
  region.head = head;
  table.add(std::move(region));
  return RegisteredMemory(owner, mine, bytes);
}

}  // namespace lockstep::comm
