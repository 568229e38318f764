// What every way to start a rank of a test needs: ranks.cpp by exec, forked_ranks.cpp without.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "tests/ranks.h"

namespace lockstep::test {

// Where its stdout and stderr go.
std::filesystem::path output_of(const Rank& rank);

// Of this process, from which init_process_group() learns who it is; the job's name is unique.
void set_environment(const Rank& rank);

}  // namespace lockstep::test
