// The library's only output besides exceptions.
//
// The environment variable LOCKSTEP_LOG sets the lowest level to print: error, warning (the
// default), info, debug or off.
// Thread safety: any thread may call both functions at any time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

enum class LogLevel { error, warning, info, debug };

// Receives whole messages without a newline; must not throw.
using LogSink = std::function<void(LogLevel level, std::string_view message)>;

// Replaces the sink. The default sink writes lines to stderr; an empty function restores it.
LOCKSTEP_API void set_log_sink(LogSink sink);

LOCKSTEP_API void log(LogLevel level, std::string_view message);

}  // namespace lockstep
