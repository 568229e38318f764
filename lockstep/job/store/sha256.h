// SHA-256 of a string, to tell long or secret texts apart by a short one.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

// 64 hexadecimal digits.
LOCKSTEP_API std::string sha256_hex(std::string_view bytes);

}  // namespace lockstep
