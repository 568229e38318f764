// Files of text, read and written as a whole.
//
// Errors: system, naming the file.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

LOCKSTEP_API std::string read_file(const std::string& path);

// Overwrites a file that exists; a device takes the text, too. After an Error, the file may be half
// written: write_small_file() (file_descriptor.h) replaces files at once.
LOCKSTEP_API void write_file(const std::string& path, std::string_view text);

}  // namespace lockstep
