// The interpreter or loader with which the kernel executes a program.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::launch {

// From a script's first line ("#!") or a 64-bit ELF program; empty for other or unreadable files.
std::string interpreter_of(const std::string& path);

}  // namespace lockstep::launch
