// The interpreter or loader with which the kernel executes a program.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::launch {

// For scripts ("#!") and 64-bit ELF programs; otherwise empty.
std::string interpreter_of(const std::string& path);

}  // namespace lockstep::launch
