// The program that the kernel starts in place of another one.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::launch {

// Returns the interpreter that a script names in its first line ("#!"), or the loader that an ELF
// program of 64 bits names. Empty for any other file, and for one that cannot be read.
std::string interpreter_of(const std::string& path);

}  // namespace lockstep::launch
