// Finds the program that the kernel starts to execute another one.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::launch {

// Returns the interpreter in a script's first line ("#!"), or the loader of a 64-bit ELF program.
// Empty for any other or unreadable file.
std::string interpreter_of(const std::string& path);

}  // namespace lockstep::launch
