// Environment variables that give options of `lockstep run` where the command line does not:
// LOCKSTEP_NNODES for --nnodes, and below it torchrun's PET_NNODES.

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

// Gives options that `app` has parsed without a value the value of their variables. Logs a warning
// for each PET_ variable of an option of torchrun that has no effect here.
//
// A scheduler sets PET_ variables for a whole job, and a command line may then choose something
// else. So none of them contradicts an option or a LOCKSTEP_ variable: with --standalone, no PET_
// variable about other hosts is read; with --rdzv-endpoint, none of PET_MASTER_ADDR and
// PET_MASTER_PORT; with --master-addr, not PET_RDZV_ENDPOINT. PET_NODE_RANK counts only for a
// fixed number of hosts, as in torchrun, and only for several.
//
// Returns the names of the variables that were used, by option.
std::map<std::string, std::string> take_variables(CLI::App& app);

}  // namespace lockstep::tools
