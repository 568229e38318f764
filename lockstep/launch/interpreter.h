// The interpreter or loader that the kernel starts to execute a program.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::launch {

// From a script's first line ("#!") or a 64-bit ELF program. Empty for any other or unreadable
// file.
std::string interpreter_of(const std::string& path);

}  // namespace lockstep::launch
