// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/images/pixel_cache.h"

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/base/processes.h"
#include "lockstep/comm/values.h"

namespace lockstep::data {

// Bytes of a new cache are zero: an empty slot.
struct PixelCache::Header {
  std::atomic<std::uint64_t> used;    // Bytes behind the slots.
  std::atomic<std::uint64_t> images;  // That are ready.
};

struct PixelCache::Slot {
  std::atomic<std::uint64_t> state;   // empty, ready, or the owner that fills it.
  std::atomic<std::uint64_t> offset;  // Of the pixels in the cache; 0 without room.
  std::atomic<std::int64_t> height;
  std::atomic<std::int64_t> width;
};

namespace {

constexpr std::uint64_t empty = 0;
constexpr std::uint64_t ready_state = 1;

// A process of this host, among all that have run on it: pid and start time, at least 2.
std::uint64_t owner_of(pid_t pid, std::int64_t started) {
  return static_cast<std::uint64_t>(started) << 32 | static_cast<std::uint32_t>(pid);
}

std::uint64_t this_owner() {
  const pid_t pid = this_process();
  const auto stat = process_stat(pid);
  return owner_of(pid, stat ? stat->started.value_or(1) : 1);
}

bool lives(std::uint64_t owner) {
  const auto pid = static_cast<pid_t>(owner & 0xffffffffU);
  const auto stat = process_stat(pid);
  return stat && stat->state != 'Z' && stat->state != 'X' &&
         owner_of(pid, stat->started.value_or(1)) == owner;
}

// Ranks with other images, or other pixels of them, must not share a cache.
struct Agreement {
  std::uint64_t images;
  std::uint64_t fingerprint;
  std::uint64_t bytes;
  std::int64_t shorter_side;

  bool operator==(const Agreement&) const = default;
};

void require_agreement(const Agreement& mine, const ProcessGroup& group) {
  const std::vector<Agreement> all = all_gather_value(mine, group, {.label = "HostCache"});
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const bool is_source =
        all[rank].images != all[0].images || all[rank].fingerprint != all[0].fingerprint;
    std::string text = "HostCache: ranks 0 and ";
    text += std::to_string(rank);
    text += is_source ? " have different images, " : " give different options to the cache, ";
    text += std::to_string(all[0].images) + " and " + std::to_string(all[rank].images);
    throw Error(Fault::mismatch, text + " images");
  }
}

RegisteredMemory allocate(const HostCache& options) {
  if (options.group) return options.group->allocate_shared(options.bytes, {.label = "HostCache"});
  const auto mapping =
      std::make_shared<SharedMapping>(SharedMapping::create("HostCache", options.bytes));
  mapping->close_descriptor();
  return {mapping, mapping->data(), options.bytes};
}

}  // namespace

PixelCache::PixelCache(std::size_t images, std::uint64_t fingerprint, const HostCache& options)
    : owner_(this_owner()), first_byte_(padded(padded(sizeof(Header)) + images * sizeof(Slot))) {
  require(options.shorter_side >= 0, "HostCache: shorter_side must not be negative");
  require(options.bytes > first_byte_, [&] {
    std::string text = "HostCache: bytes must be more than the ";
    text += std::to_string(first_byte_);
    return text + " that its list of images takes";
  });
  if (options.group)
    require_agreement({images, fingerprint, options.bytes, options.shorter_side}, *options.group);
  memory_ = allocate(options);
}

PixelCache::Header& PixelCache::header() const { return *static_cast<Header*>(memory_.data()); }

PixelCache::Slot& PixelCache::slot(std::size_t image) const {
  auto* const slots = static_cast<std::byte*>(memory_.data()) + padded(sizeof(Header));
  return reinterpret_cast<Slot*>(slots)[image];
}

std::size_t PixelCache::images() const { return header().images; }

std::optional<PixelView> PixelCache::find(std::size_t image) const {
  const Slot& found = slot(image);
  if (found.state.load(std::memory_order_acquire) != ready_state) return std::nullopt;
  const std::int64_t width = found.width;
  return PixelView{static_cast<const std::uint8_t*>(memory_.data()) + found.offset,
                   {found.height, width},
                   width * channels};
}

std::optional<PixelCache::Filling> PixelCache::start(std::size_t image, const ImageSize& size) {
  Slot& wanted = slot(image);
  if (!take(wanted)) return std::nullopt;
  Filling filling(*this, image, room_for(wanted, size));
  if (filling.pixels() == nullptr) return std::nullopt;
  return filling;
}

// Makes this process the owner of a slot without a living one.
bool PixelCache::take(Slot& slot) const {
  std::uint64_t state = slot.state.load(std::memory_order_acquire);
  if (state == ready_state || (state != empty && lives(state))) return false;
  return slot.state.compare_exchange_strong(state, owner_, std::memory_order_acq_rel);
}

// Returns null without room. The room that a dead owner has taken is used again.
std::uint8_t* PixelCache::room_for(Slot& slot, const ImageSize& size) const {
  auto* const begin = static_cast<std::uint8_t*>(memory_.data());
  if (slot.offset != 0 && slot.height == size.height && slot.width == size.width)
    return begin + slot.offset;
  const std::uint64_t room = memory_.bytes() - first_byte_;
  const std::uint64_t bytes = padded(static_cast<std::size_t>(bytes_of(size)));
  std::uint64_t used = header().used;
  do {
    if (bytes > room - used) return nullptr;
  } while (!header().used.compare_exchange_weak(used, used + bytes));
  slot.height = size.height;
  slot.width = size.width;
  slot.offset = first_byte_ + used;
  return begin + slot.offset;
}

void PixelCache::keep(std::size_t image, const PixelView& pixels) {
  auto filling = start(image, pixels.size);
  if (!filling) return;
  const auto line = static_cast<std::size_t>(pixels.size.width * channels);
  for (std::int64_t y = 0; y < pixels.size.height; ++y)
    std::memcpy(filling->pixels() + static_cast<std::size_t>(y) * line, pixels.row(y), line);
  filling->ready();
}

PixelCache::Filling::Filling(Filling&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)), image_(other.image_), pixels_(other.pixels_) {}

PixelCache::Filling::~Filling() {
  if (cache_ != nullptr) cache_->slot(image_).state.store(empty, std::memory_order_release);
}

void PixelCache::Filling::ready() {
  cache_->slot(image_).state.store(ready_state, std::memory_order_release);
  ++cache_->header().images;
  cache_ = nullptr;
}

}  // namespace lockstep::data
