// Asks another program something, without being harmed when that crashes or hangs.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::doctor {

struct Answer {
  std::string out = {};  // What it wrote to stdout.
  std::string end = {};  // How it ended, for people, such as "was ended by signal 11
                         // (Segmentation fault)"; empty for exit code 0.
};

// `arguments` begin with the program's path; `variables`, such as "NAME=value", are added to our
// environment. The program's stderr is dropped. Blocking: until it has ended, or it is killed at
// the limit. Errors: system.
Answer ask(const std::vector<std::string>& arguments, std::chrono::milliseconds limit,
           const std::vector<std::string>& variables = {});

}  // namespace lockstep::doctor
