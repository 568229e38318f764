// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/images/encoded_images.h"

namespace lockstep {

std::span<std::uint8_t> EncodedBuffer::take(std::size_t bytes) {
  if (bytes > capacity_) {
    memory_ = std::make_unique_for_overwrite<std::uint8_t[]>(bytes);
    capacity_ = bytes;
  }
  return {memory_.get(), bytes};
}

}  // namespace lockstep
