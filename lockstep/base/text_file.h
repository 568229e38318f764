// Reads and writes whole text files. Errors: system, naming the file.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

LOCKSTEP_API std::string read_file(const std::string& path);

// `path` may be a device. An Error may leave the file partially written; write_small_file()
// (file_descriptor.h) replaces files atomically.
LOCKSTEP_API void write_file(const std::string& path, std::string_view text);

}  // namespace lockstep
