// What an Error says, for those who put it into another one.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"

namespace lockstep {

// Without the fault before it and the place in our sources behind it, which a second Error adds
// anew.
LOCKSTEP_API std::string bare_text(const Error& error);

}  // namespace lockstep
