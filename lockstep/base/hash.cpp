// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lockstep {

std::uint64_t hash_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace lockstep
