// XXH3-64 hashes, equal in every version of xxHash. No protection against attackers.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/base/api.h"

namespace lockstep {

LOCKSTEP_API std::uint64_t hash_of(std::span<const std::byte> bytes);

template <class Element>
std::uint64_t hash_of_elements(const Element& elements) {
  return hash_of(std::as_bytes(std::span(elements)));
}

}  // namespace lockstep
