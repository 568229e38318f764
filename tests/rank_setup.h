// Common setup for a test's ranks: ranks.cpp starts them by exec, forked_ranks.cpp without.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "tests/ranks.h"

namespace lockstep::test {

// Path for its stdout and stderr.
std::filesystem::path output_of(const Rank& rank);

// Sets this process's variables for init_process_group(); the job's name is unique.
void set_environment(const Rank& rank);

}  // namespace lockstep::test
