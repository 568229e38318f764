// Marks what a shared library of Lockstep lets its users see.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#define LOCKSTEP_API __attribute__((visibility("default")))
