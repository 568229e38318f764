// Runs another program for its answer; a crash or a hang of that program does no harm.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::doctor {

struct Answer {
  std::string out = {};  // Its stdout.
  // Description of its end, such as "was ended by signal 11 (Segmentation fault)"; empty for exit
  // code 0.
  std::string end = {};
};

// `arguments` begin with the program's path. `variables`, such as "NAME=value", are added to our
// environment. The program's stderr is dropped.
//
// Blocking: until it has ended; it is killed at the limit. Errors: system.
Answer ask(const std::vector<std::string>& arguments, std::chrono::milliseconds limit,
           const std::vector<std::string>& variables = {});

}  // namespace lockstep::doctor
