// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/registered_blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/processes.h"

namespace lockstep::torch_backend {
namespace {

constexpr std::size_t region_unit = std::size_t{1} << 20;

std::size_t rounded_up(std::size_t bytes) {
  return (bytes + region_unit - 1) / region_unit * region_unit;
}

std::byte* begin_of(const RegisteredMemory& region) {
  return static_cast<std::byte*>(region.data());
}

// MAP_FAILED without memory. Huge pages, if `region` has them, make the fork four times as fast.
void* memory_for_copy(const RegisteredMemory& region) {
  constexpr std::size_t huge_page = std::size_t{2} << 20;
  void* const all = ::mmap(nullptr, region.bytes() + huge_page, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return all;
  const auto begin = reinterpret_cast<std::uintptr_t>(all);
  const std::size_t before = (reinterpret_cast<std::uintptr_t>(region.data()) - begin) % huge_page;
  auto* const data = static_cast<std::byte*>(all) + before;
  if (before > 0) ::munmap(all, before);
  ::munmap(data + region.bytes(), huge_page - before);
  ::madvise(data, region.bytes(), MADV_HUGEPAGE);
  return data;
}

}  // namespace

void RegisteredBlocks::open(Source source) {
  // Destroyed unlocked.
  auto replaced = std::make_shared<const Source>(std::move(source));
  const std::lock_guard lock(mutex_);
  source_.swap(replaced);
  regions_.clear();
  total_ = 0;
  is_short_ = false;
  owner_ = this_process();
}

void RegisteredBlocks::close() {
  // Destroyed unlocked.
  std::shared_ptr<const Source> source;
  const std::lock_guard lock(mutex_);
  source.swap(source_);
  regions_.clear();
  total_ = 0;
  owner_ = 0;
}

bool RegisteredBlocks::is_open() const {
  const pid_t owner = owner_.load(std::memory_order_relaxed);
  return owner != 0 && owner == this_process();
}

void* RegisteredBlocks::take(std::size_t bytes, std::size_t limit) {
  try {
    return take_or_grow(bytes, is_short_ ? 0 : limit);
  } catch (const Error& error) {
    is_short_ = true;
    log(LogLevel::info, std::string("tensors get ordinary memory from now on: ") + error.what());
    return nullptr;
  }
}

void* RegisteredBlocks::require(std::size_t bytes) {
  void* const block = take_or_grow(bytes, std::numeric_limits<std::size_t>::max());
  lockstep::require(block != nullptr,
                    "registered memory: this process is in no group of backend lockstep");
  return block;
}

void* RegisteredBlocks::take_or_grow(std::size_t bytes, std::size_t limit) {
  if (!is_open()) return nullptr;  // In a child, locks may be held forever.
  if (void* const block = take_from_regions(bytes)) return block;
  const std::lock_guard growing(growth_mutex_);
  for (;;) {
    // Another thread may have added a region.
    if (void* const block = take_from_regions(bytes)) return block;
    if (!grow(bytes, limit)) return nullptr;
  }
}

void* RegisteredBlocks::take_from_regions(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  for (const auto& region : regions_)
    if (void* const data = region->take(bytes)) {
      blocks_.emplace(data, Block{region, bytes});
      return data;
    }
  return nullptr;
}

// Allocates without mutex_, which others need meanwhile.
bool RegisteredBlocks::grow(std::size_t bytes, std::size_t limit) {
  std::shared_ptr<const Source> source;
  std::size_t size = 0;
  {
    const std::lock_guard lock(mutex_);
    size = next_region(bytes);
    if (!is_open() || size > limit || total_ > limit - size) return false;
    source = source_;
  }
  auto region = std::make_shared<RegisteredRegion>((*source)(size));
  const std::lock_guard lock(mutex_);
  if (source == source_) {  // Otherwise it was closed in the meantime.
    regions_.push_back(std::move(region));
    total_ += size;
  }
  return true;
}

// Doubles the memory, so that many tensors need few regions.
std::size_t RegisteredBlocks::next_region(std::size_t bytes) const {
  return std::max(rounded_up(RegisteredRegion::block_bytes(bytes)),
                  std::clamp(total_, least_region, most_region));
}

bool RegisteredBlocks::give_back(void* data) {
  // Destroyed unlocked.
  std::shared_ptr<RegisteredRegion> region;
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(data);
  if (found == blocks_.end()) return false;
  region = std::move(found->second.region);
  blocks_.erase(found);
  region->give_back(data);
  return true;
}

bool RegisteredBlocks::contains(const void* data) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(regions_.begin(), regions_.end(), [&](const auto& region) {
    const auto offset = static_cast<const std::byte*>(data) - begin_of(region->memory());
    return offset >= 0 && static_cast<std::size_t>(offset) < region->memory().bytes();
  });
}

// --- fork() --------------------------------------------------------------------------------------

// Locked during the fork: the child gets consistent blocks and a free lock.
void RegisteredBlocks::before_fork() {
  mutex_.lock();
  for (const auto& [data, block] : blocks_) {
    const RegisteredMemory& region = block.region->memory();
    if (copies_.empty() || copies_.back().region != &region)
      copies_.push_back({&region, memory_for_copy(region)});
    void* const copy = copies_.back().data;
    if (copy == MAP_FAILED) continue;
    const std::ptrdiff_t offset = static_cast<std::byte*>(data) - begin_of(region);
    std::memcpy(static_cast<std::byte*>(copy) + offset, data, block.bytes);
  }
}

void RegisteredBlocks::after_fork_in_parent() {
  for (const Copy& copy : copies_)
    if (copy.data != MAP_FAILED) ::munmap(copy.data, copy.region->bytes());
  copies_.clear();
  mutex_.unlock();
}

// Without memory for a copy, access to a block is SIGSEGV.
void RegisteredBlocks::after_fork_in_child() {
  for (const Copy& copy : copies_) {
    const std::size_t bytes = copy.region->bytes();
    const bool is_moved =
        copy.data != MAP_FAILED && ::mremap(copy.data, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                                            copy.region->data()) != MAP_FAILED;
    if (!is_moved)
      ::mmap(copy.region->data(), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  }
  copies_.clear();
  mutex_.unlock();
}

}  // namespace lockstep::torch_backend
