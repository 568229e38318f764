// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/images/pixel_cache.h"

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/data/agreement.h"

namespace lockstep::datasets {

// A new cache is all zeros: empty slots.
struct PixelCache::Header {
  std::atomic<std::uint64_t> used;    // Bytes behind the slots.
  std::atomic<std::uint64_t> images;  // Ready ones.
};

struct PixelCache::Slot {
  std::atomic<std::uint64_t> state;  // Empty, filling owner, or offset of the pixels.
  std::atomic<std::uint64_t> place;  // Last reserved offset; 0: none.
};

// Written before a slot has the offset.
struct PixelCache::CachedImage {
  ImageSize size;

  std::uint8_t* pixels() { return reinterpret_cast<std::uint8_t*>(this + 1); }
};

namespace {

constexpr std::uint64_t empty = 0;
constexpr std::uint64_t owner_bit = std::uint64_t{1} << 63;  // Not used by offsets.

// A process of this host.
std::uint64_t owner_of(pid_t pid, std::int64_t started) {
  return owner_bit | static_cast<std::uint64_t>(started) << 32 | static_cast<std::uint32_t>(pid);
}

bool is_ready(std::uint64_t state) { return state != empty && (state & owner_bit) == 0; }

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

RegisteredMemory allocated(const HostCache& options) {
  if (options.group) return options.group->allocate_shared(options.bytes, {.label = "HostCache"});
  const auto mapping =
      std::make_shared<SharedMapping>(SharedMapping::create("HostCache", options.bytes));
  mapping->close_descriptor();
  return {mapping, mapping->data(), options.bytes};
}

// Adds the option's name to Errors.
RegisteredMemory allocate(const HostCache& options) {
  try {
    return allocated(options);
  } catch (const Error& error) {
    if (error.fault() != Fault::system) throw;
    throw Error(Fault::system, "HostCache::bytes is " + std::to_string(options.bytes) +
                                   ", which this host cannot give: " + bare_text(error));
  }
}

}  // namespace

PixelCache::PixelCache(std::size_t images, std::uint64_t fingerprint, const HostCache& options)
    : owner_(this_owner()), first_byte_(padded(padded(sizeof(Header)) + images * sizeof(Slot))) {
  // Before a rank may reject its options: ranks with other images or pixels must not share a cache.
  if (options.group)
    require_agreement("HostCache",
                      {{"the number of images", images},
                       {"the fingerprint of the images", fingerprint},
                       {"bytes", options.bytes},
                       {"shorter_side", static_cast<std::uint64_t>(options.shorter_side)}},
                      *options.group);
  require(options.shorter_side >= 0, "HostCache: shorter_side must not be negative");
  require(options.bytes > first_byte_, [&] {
    std::string text = "HostCache: bytes must be more than the ";
    text += std::to_string(first_byte_);
    return text + " that its list of images takes";
  });
  memory_ = allocate(options);
}

PixelCache::Header& PixelCache::header() const { return *static_cast<Header*>(memory_.data()); }

PixelCache::Slot& PixelCache::slot(std::size_t image) const {
  auto* const slots = static_cast<std::byte*>(memory_.data()) + padded(sizeof(Header));
  return reinterpret_cast<Slot*>(slots)[image];
}

PixelCache::CachedImage& PixelCache::image_at(std::uint64_t offset) const {
  return *reinterpret_cast<CachedImage*>(static_cast<std::byte*>(memory_.data()) + offset);
}

std::size_t PixelCache::images() const { return header().images; }

std::optional<PixelView> PixelCache::find(std::size_t image) const {
  const std::uint64_t state = slot(image).state.load(std::memory_order_acquire);
  if (!is_ready(state)) return std::nullopt;
  CachedImage& found = image_at(state);
  return PixelView{found.pixels(), found.size, found.size.width * channels};
}

std::optional<PixelCache::Filling> PixelCache::start(std::size_t image, const ImageSize& size) {
  Slot& wanted = slot(image);
  if (!take(wanted)) return std::nullopt;
  Filling filling(*this, image);
  filling.place_ = place_for(wanted, size);
  if (filling.place_ == 0) return std::nullopt;
  return filling;
}

// Only if the owner is dead or absent.
bool PixelCache::take(Slot& slot) const {
  std::uint64_t state = slot.state.load(std::memory_order_acquire);
  if (is_ready(state) || (state != empty && lives(state))) return false;
  return slot.state.compare_exchange_strong(state, owner_, std::memory_order_acq_rel);
}

// Returns 0 without space. Reuses an earlier owner's reservation.
std::uint64_t PixelCache::place_for(Slot& slot, const ImageSize& size) const {
  if (const std::uint64_t taken = slot.place; taken != 0 && image_at(taken).size == size)
    return taken;
  const std::uint64_t all = memory_.bytes() - first_byte_;
  const std::uint64_t bytes =
      padded(sizeof(CachedImage) + static_cast<std::size_t>(bytes_of(size)));
  std::uint64_t used = header().used;
  do {
    if (bytes > all - used) return 0;
  } while (!header().used.compare_exchange_weak(used, used + bytes));
  const std::uint64_t offset = first_byte_ + used;
  image_at(offset).size = size;
  slot.place = offset;
  return offset;
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
    : cache_(std::exchange(other.cache_, nullptr)), image_(other.image_), place_(other.place_) {}

PixelCache::Filling::~Filling() {
  if (cache_ != nullptr) end_with(empty);
}

std::uint8_t* PixelCache::Filling::pixels() const { return cache_->image_at(place_).pixels(); }

// False if another process owns the slot.
bool PixelCache::Filling::end_with(std::uint64_t state) {
  std::uint64_t owner = cache_->owner_;
  return cache_->slot(image_).state.compare_exchange_strong(owner, state,
                                                            std::memory_order_acq_rel);
}

void PixelCache::Filling::ready() {
  if (end_with(place_)) ++cache_->header().images;
  cache_ = nullptr;
}

}  // namespace lockstep::datasets
