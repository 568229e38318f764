// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/temporary_folder.h"

#include <cstdlib>
#include <string>
#include <system_error>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::filesystem::path new_folder() {
  try {
    std::string name = std::filesystem::temp_directory_path() / "lockstep-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw_errno("making folder " + name);
    return name;
  } catch (const std::filesystem::filesystem_error& error) {
    throw_errno("finding " + error.path1().string() + ", the folder of TMPDIR",
                error.code().value());
  }
}

}  // namespace

TemporaryFolder::TemporaryFolder() : path_(new_folder()) {}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace lockstep
