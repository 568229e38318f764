// The library's only way to say something outside of exceptions.
//
// The environment variable LOCKSTEP_LOG chooses the least level that is let through: error,
// warning (the default), info, debug or off.
// Thread safety: both functions may be called from any thread at once.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

enum class LogLevel { error, warning, info, debug };

// Gets whole messages without a newline; must not throw.
using LogSink = std::function<void(LogLevel level, std::string_view message)>;

// Replaces the sink, which at first writes lines to stderr. An empty function restores that one.
LOCKSTEP_API void set_log_sink(LogSink sink);

LOCKSTEP_API void log(LogLevel level, std::string_view message);

}  // namespace lockstep
