// LibTorch and the engines that a job would load, examined in other processes: a crash or a hang of
// such a process does no harm.

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
  // Description of its end, such as "was ended by signal 11 (Segmentation fault)"; empty for exit
  // code 0.
  std::string end = {};
};

// Runs a program. `arguments` begin with the program's path. `variables`, such as "NAME=value", are
// added to our environment. The program's stderr is dropped.
//
// Blocking: until it has ended; it is killed at the limit. Errors: system.
Answer ask(const std::vector<std::string>& arguments, std::chrono::milliseconds limit,
           const std::vector<std::string>& variables = {});

// --- LibTorch ------------------------------------------------------------------------------------

// Examines LibTorch without loading it, which takes a second. `built_for` is its version. `library`
// is the file name of the library that links it, beside liblockstep_comm.so; empty in a build
// without LibTorch. The result is empty where that library is not installed.
LibTorch examine_libtorch(const std::string& built_for, const std::string& library);

// Returns the loader's list of libraries that `library` needs, as ldd(1) prints it: a line "NAME =>
// PATH (ADDRESS)" or "NAME => not found" for each. The loader's --list would stop at a missing
// library.
Answer list_needed(const std::filesystem::path& library);

// Reads LibTorch's state from such a list.
LibTorch libtorch_in(const std::string& list, const std::string& built_for);

// Returns the version given in the folder above that of `libtorch_cpu`: in build-version in
// LibTorch's archives, in version.py in Python's package. Empty without either file.
std::string version_of_libtorch(const std::filesystem::path& libtorch_cpu);

// --- Engines for communication between hosts -----------------------------------------------------

// Opens each engine in a process of its own, `program` --engine NAME, as in a job. So libraries
// that conflict, crash or hang are only a line in the report. Blocking: at most 20 s for each.
std::vector<EngineState> examine_engines(const std::string& program);

// The work of that process: opens the engine, writes only the result to stdout, and ends.
[[noreturn]] void report_engine(const std::string& name);

// Parses the text of report_engine(). An invalid text means that the engine cannot be used.
EngineState engine_in(const std::string& name, const std::string& written, const std::string& end);

}  // namespace lockstep::doctor
