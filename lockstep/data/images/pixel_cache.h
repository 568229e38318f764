// Decoded images in memory that all ranks of a host map. Each image has a slot, which is empty,
// being filled by a process, or ready.
//
// No process waits for another. If another process is filling a slot, the caller decodes the image
// itself. If pid and start time show that this process has died, the caller fills the slot again,
// in the same memory. A process in another pid namespace counts as dead. If such a process still
// lives, both write the same pixels, and only the later owner can change the slot's state.
//
// Thread safety: any thread of any process that maps the memory may call any member.
// Blocking: only the constructor.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/images/decoded_images.h"
#include "lockstep/data/images/pixels.h"

namespace lockstep::data {

class PixelCache {
 public:
  // Collective if `options` has a group. `fingerprint` is the source's. Errors: as DecodedImages.
  PixelCache(std::size_t images, std::uint64_t fingerprint, const HostCache& options);

  // Returns the image, or nothing unless its slot is ready.
  std::optional<PixelView> find(std::size_t image) const;

  // A slot that this process fills. Destruction without ready() empties the slot.
  class Filling {
   public:
    Filling(Filling&& other) noexcept;
    Filling& operator=(Filling&&) = delete;
    ~Filling();

    std::uint8_t* pixels() const;

    // No effect if another process has taken over the slot.
    void ready();

   private:
    friend class PixelCache;
    Filling(PixelCache& cache, std::size_t image) : cache_(&cache), image_(image) {}
    bool end_with(std::uint64_t state);

    PixelCache* cache_;
    std::size_t image_;
    std::uint64_t place_ = 0;
  };

  // Returns nothing if the slot is ready, a living process fills it, or the memory is full.
  std::optional<Filling> start(std::size_t image, const ImageSize& size);

  // Stores the image if its slot can be filled.
  void keep(std::size_t image, const PixelView& pixels);

  const RegisteredMemory& memory() const { return memory_; }
  std::size_t images() const;  // Number of ready images.

 private:
  struct Header;
  struct Slot;
  struct CachedImage;

  Header& header() const;
  Slot& slot(std::size_t image) const;
  CachedImage& image_at(std::uint64_t offset) const;
  bool take(Slot& slot) const;
  std::uint64_t place_for(Slot& slot, const ImageSize& size) const;

  std::uint64_t owner_;  // This process.
  std::size_t first_byte_;
  RegisteredMemory memory_;
};

}  // namespace lockstep::data
