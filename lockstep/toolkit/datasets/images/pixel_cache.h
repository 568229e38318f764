// Implements HostCache: each image has a slot, which is empty, being filled by a process, or ready.
//
// No thread waits for another. If a slot is being filled, the caller decodes the image itself. If
// pid and start time show that the filling process has died, the caller fills the slot again, in
// the same memory. A process in another pid namespace counts as dead. If it lives, both write the
// same pixels, and only the later owner can change the slot's state.
//
// Thread safety: full, also between processes that map the memory. Blocking: only the
// constructor.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/comm/process_group.h"
#include "lockstep/toolkit/datasets/images/decoded_images.h"
#include "lockstep/toolkit/datasets/images/pixels.h"

namespace lockstep::datasets {

class PixelCache {
 public:
  // Collective if `options` has a group. `fingerprint` is the source's. Errors: as DecodedImages.
  PixelCache(std::size_t images, std::uint64_t fingerprint, const HostCache& options);

  // Returns nothing unless the slot is ready.
  std::optional<PixelView> find(std::size_t image) const;

  // Destruction without ready() empties the slot.
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
  std::size_t images() const;  // Ready ones.

 private:
  struct Header;
  struct Slot;
  struct CachedImage;

  Header& header() const;
  Slot& slot(std::size_t image) const;
  CachedImage& image_at(std::uint64_t offset) const;
  bool take(Slot& slot) const;
  std::uint64_t place_for(Slot& slot, const ImageSize& size) const;

  std::uint64_t owner_;
  std::size_t first_byte_;
  RegisteredMemory memory_;
};

}  // namespace lockstep::datasets
