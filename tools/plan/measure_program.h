// Runs a program that measures its model, under `lockstep run`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "lockstep/toolkit/plan/model_profile.h"

namespace lockstep::tools {

struct NotMeasured {
  int exit_code = 1;
  std::string text = {};
};

// Blocking: until the program has ended. Its output goes to stderr. Errors: system.
std::variant<ModelProfile, NotMeasured> measure_program(const std::vector<std::string>& program,
                                                        int ranks);

// Errors: corrupt and system, naming the file.
ModelProfile read_profile(const std::string& file);

}  // namespace lockstep::tools
