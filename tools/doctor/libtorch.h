// Which LibTorch this copy of Lockstep would load: asked without loading it, which takes a second.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "tools/doctor/child.h"
#include "tools/doctor/host.h"

namespace lockstep::doctor {

// `built_for` is its version and `library` the file name of what links it, which lies beside
// liblockstep_comm.so; both are empty in a build without LibTorch.
LibTorch examine_libtorch(const std::string& built_for, const std::string& library);

// The loader's list of libraries that `library` needs, a line "NAME => PATH (ADDRESS)" or
// "NAME => not found" for each, as ldd(1) prints it. Its --list would stop at one that is not
// found.
Answer list_needed(const std::filesystem::path& library);

// What such a list says of LibTorch.
LibTorch libtorch_in(const std::string& list, const std::string& built_for);

// As it says in the folder above that of `libtorch_cpu`: LibTorch's archives have a file
// build-version there, Python's package a version.py. Empty for neither.
std::string version_of_libtorch(const std::filesystem::path& libtorch_cpu);

}  // namespace lockstep::doctor
