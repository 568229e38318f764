// Random numbers.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "lockstep/base/api.h"

namespace lockstep {

// From getrandom(). Errors: system.
LOCKSTEP_API std::uint64_t random_number();

}  // namespace lockstep
