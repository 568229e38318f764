// Environment variables for options of `lockstep run` that the command line does not set:
// LOCKSTEP_NNODES for --nnodes and, with lower precedence, torchrun's PET_NNODES.

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

// "PET_NNODES" for "nnodes"; empty for an option that torchrun does not have.
std::string torchrun_variable_of(const std::string& option);

// Sets options that `app` has parsed without a value from their variables. Logs a warning for each
// PET_ variable of a torchrun option that has no effect here. Returns the names of the variables
// that were used, by option.
//
// A scheduler sets PET_ variables for a whole job, so they never contradict an option or a
// LOCKSTEP_ variable. With --standalone, PET_ variables about other hosts are ignored; with
// --rdzv-endpoint, PET_MASTER_ADDR and PET_MASTER_PORT; with --master-addr, PET_RDZV_ENDPOINT.
// PET_NODE_RANK counts only for a fixed number of several hosts, as in torchrun.
std::map<std::string, std::string> take_variables(CLI::App& app);

}  // namespace lockstep::tools
