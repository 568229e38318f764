// Where the files of a named dataset lie.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

// The files a dataset consists of. Each may also be there as NAME.gz when `packed` says so.
struct DatasetFiles {
  std::vector<std::string> names;
  bool packed = false;
};

// The path of each file, all in one directory: `directory` itself or, when that is a bare name
// such as "fashion-mnist", the directory of that name below $LOCKSTEP_DATA or /usr/share/datasets.
// Errors: system, listing every place looked at, when none of them has all files. `remedy` is what
// the message ends with.
std::vector<std::filesystem::path> find_dataset(const std::filesystem::path& directory,
                                                const DatasetFiles& files,
                                                const std::string& remedy = "");

}  // namespace lockstep
