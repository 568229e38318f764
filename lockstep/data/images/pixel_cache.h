// Decoded images in memory that all ranks of a host map. Each image has a slot, which is empty,
// being filled by a process, or ready.
//
// No one waits for another process. A slot that someone else fills counts as absent: the caller
// decodes the image for itself. A filler that died is recognised by its pid and start time, and its
// slot is filled anew, in the same memory. A process that is not seen, for example in another pid
// namespace, counts as dead, too. If it lives, both write the same pixels, and only
// the one that has taken the slot last makes it ready, or empty.
//
// Thread safety: any thread of any process with the memory may call any member.
// Blocking: no, except the constructor.

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
  // Collective if `options` have a group. `fingerprint` is the source's. Errors: as those of
  // DecodedImages.
  PixelCache(std::size_t images, std::uint64_t fingerprint, const HostCache& options);

  // Empty unless ready.
  std::optional<PixelView> find(std::size_t image) const;

  // A slot that this process fills. Without ready(), its end makes the slot empty again.
  class Filling {
   public:
    Filling(Filling&& other) noexcept;
    Filling& operator=(Filling&&) = delete;
    ~Filling();

    std::uint8_t* pixels() const;

    // Does nothing if another process has taken the slot over.
    void ready();

   private:
    friend class PixelCache;
    Filling(PixelCache& cache, std::size_t image) : cache_(&cache), image_(image) {}
    bool end_with(std::uint64_t state);

    PixelCache* cache_;
    std::size_t image_;
    std::uint64_t room_ = 0;
  };

  // Empty if the slot is ready, if a living process fills it, or without room.
  std::optional<Filling> start(std::size_t image, const ImageSize& size);

  // Copies pixels into the image's slot, if it can be filled.
  void keep(std::size_t image, const PixelView& pixels);

  const RegisteredMemory& memory() const { return memory_; }
  std::size_t images() const;  // That are ready.

 private:
  struct Header;
  struct Slot;
  struct Room;

  Header& header() const;
  Slot& slot(std::size_t image) const;
  Room& room(std::uint64_t offset) const;
  bool take(Slot& slot) const;
  std::uint64_t room_for(Slot& slot, const ImageSize& size) const;

  std::uint64_t owner_;  // Of slots that this process fills.
  std::size_t first_byte_;
  RegisteredMemory memory_;
};

}  // namespace lockstep::data
