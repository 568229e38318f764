// LibTorch and the engines of a job, examined in other processes, which may crash or hang.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "tools/doctor/host.h"

namespace lockstep::doctor {

// --- Questions to another program ----------------------------------------------------------------

struct Answer {
  std::string out = {};  // Its stdout.
  // Such as "was ended by signal 11 (Segmentation fault)"; empty for exit code 0.
  std::string end = {};
};

// Runs a program. `arguments` begin with its path; `variables`, such as "NAME=value", are added to
// the environment. Discards its stderr. Blocking: until it has ended; it is killed at the limit.
// Errors: system.
Answer ask(const std::vector<std::string>& arguments, std::chrono::milliseconds limit,
           const std::vector<std::string>& variables = {});

// --- LibTorch ------------------------------------------------------------------------------------

// Does not load LibTorch, which takes a second. `library` is the file name of the library that
// links it, in the folder of liblockstep_comm.so. Empty if that is not installed.
LibTorch examine_libtorch(const std::string& built_for, const std::string& library);

// As ldd(1): "NAME => PATH (ADDRESS)" or "NAME => not found" per line. The loader's --list would
// stop at a missing library.
Answer list_needed(const std::filesystem::path& library);

LibTorch libtorch_in(const std::string& list, const std::string& built_for);

// From build-version in the parent of libtorch_cpu's folder, or the Python package's version.py.
// Empty without either.
std::string version_of_libtorch(const std::filesystem::path& libtorch_cpu);

// --- Engines for communication between hosts -----------------------------------------------------

// Opens each engine in its own process, `program` --engine NAME. Blocking: at most 20 s for each.
std::vector<EngineState> examine_engines(const std::string& program);

// Runs in that process, writes only the result to stdout, and exits.
[[noreturn]] void report_engine(const std::string& name);

// An engine with invalid output is unusable.
EngineState engine_in(const std::string& name, const std::string& written, const std::string& end);

}  // namespace lockstep::doctor
