// Marks a declaration that Lockstep's shared libraries export.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#if __cplusplus < 202002L  // #error would not end the compilation.
#include "Lockstep needs C++20: compile with -std=c++20, or set(CMAKE_CXX_STANDARD 20) in CMake"
#endif

#define LOCKSTEP_API __attribute__((visibility("default")))
