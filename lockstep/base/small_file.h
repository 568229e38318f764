// Writes a small file atomically: it gets its name once it is complete. On a full disk the old file
// stays as it is.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

// Replaces `path` by a file with `text` that only this user may read. A process killed meanwhile
// leaves PATH.XXXXXX. Overwrites the file in place if this user may write it but may create no file
// beside it. Errors: system, naming the file; no temporary file stays then.
LOCKSTEP_API void write_small_file(const std::string& path, std::string_view text);

// Writes all of `text` to a file, a pipe or a device. Errors: system.
LOCKSTEP_API void write_all(int descriptor, std::string_view text);

}  // namespace lockstep
