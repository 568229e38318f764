// LibTorch that this copy of Lockstep would load: found without loading it, which takes a second.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "tools/doctor/child.h"
#include "tools/doctor/host.h"

namespace lockstep::doctor {

// `built_for` is its version. `library` is the file name of the library that links it, beside
// liblockstep_comm.so. Both are empty in a build without LibTorch.
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

}  // namespace lockstep::doctor
