// The message of an Error, to be put into another Error.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"

namespace lockstep {

// Returns the message without the fault in front and the source location at the end. The second
// Error adds both again.
LOCKSTEP_API std::string bare_text(const Error& error);

}  // namespace lockstep
