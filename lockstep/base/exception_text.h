// Describes an exception for code that can no longer catch it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <optional>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"

namespace lockstep {

// Returns the type as a program writes it, and what(): "std::runtime_error: loss is nan". An
// exception not derived from std::exception gives its type only. At most about 8 KiB.
LOCKSTEP_API std::string exception_text(const std::exception_ptr& error);

// Whether the exception only reports that another rank failed or left its group. The other rank's
// own exception is then the one to show.
LOCKSTEP_API bool is_consequence(const std::exception_ptr& error);

// Returns the fault of an Error of this library; empty for any other exception.
LOCKSTEP_API std::optional<Fault> fault_in(const std::exception_ptr& error);

// Returns the caller's call stack: one call a line, innermost first, without the first `skip`
// calls.
LOCKSTEP_API std::string call_stack(int skip);

}  // namespace lockstep
