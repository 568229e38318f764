// An exception in words, for those who can no longer catch it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <optional>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"

namespace lockstep {

// Its type as one writes it in a program, and what(): "std::runtime_error: loss is nan". Of what is
// not derived from std::exception, the type alone. At most some 8 KiB.
LOCKSTEP_API std::string exception_text(const std::exception_ptr& error);

// Whether it only says that another rank has failed, or has given its group up: that rank's own
// exception is the one to be shown.
LOCKSTEP_API bool is_consequence(const std::exception_ptr& error);

// The fault of an Error of ours; empty for any other exception.
LOCKSTEP_API std::optional<Fault> fault_in(const std::exception_ptr& error);

// The calls that led to whoever asks, one a line, the innermost first, but for `skip` of them.
LOCKSTEP_API std::string call_stack(int skip);

}  // namespace lockstep
