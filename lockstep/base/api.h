// Marks a declaration that Lockstep's shared libraries export.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#if __cplusplus < 202002L
#error "Lockstep needs C++20"
#endif

#define LOCKSTEP_API __attribute__((visibility("default")))
