// A small file that appears under its name when it is whole, and not before. On a full disk, what
// had the name stays as it is.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

// Puts `text` into `path`, which only this user may read, in place of what is there. A process that
// is killed meanwhile leaves PATH.XXXXXX. Where this user may write the file but make none beside
// it, the file is overwritten in place. Errors: system, naming the file; nothing is left beside it
// then.
LOCKSTEP_API void write_small_file(const std::string& path, std::string_view text);

// All of `text`, to a file, a pipe or a device. Errors: system.
LOCKSTEP_API void write_all(int descriptor, std::string_view text);

}  // namespace lockstep
