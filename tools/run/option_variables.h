// Environment variables for options of `lockstep run` that the command line lacks: LOCKSTEP_NNODES
// for --nnodes and, with lower precedence, torchrun's PET_NNODES.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

namespace CLI {
class App;
}

namespace lockstep::tools {

// "LOCKSTEP_NNODES" for "nnodes".
std::string variable_of(const std::string& option);

// "PET_NNODES" for "nnodes"; empty for an option that torchrun lacks.
std::string torchrun_variable_of(const std::string& option);

// Sets options that `app` has parsed without a value from their variables. Logs a warning for each
// PET_ variable of a torchrun option that has no effect here. Logs another for each unknown
// LOCKSTEP_ variable that is similar to a known one. Returns the used variables by option.
//
// PET_ variables never contradict an option or a LOCKSTEP_ variable: docs/launcher.md has the
// rules.
std::map<std::string, std::string> take_variables(CLI::App& app);

}  // namespace lockstep::tools
