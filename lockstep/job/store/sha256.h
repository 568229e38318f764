// SHA-256 of a string: a short text that distinguishes long or secret texts.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

// Returns 64 hexadecimal digits.
LOCKSTEP_API std::string sha256_hex(std::string_view bytes);

}  // namespace lockstep
