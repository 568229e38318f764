// Finds the files of a named dataset.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

// The files of a dataset. If `packed` is set, each file may also be present as NAME.gz.
struct DatasetFiles {
  std::vector<std::string> names;
  bool packed = false;
};

// Returns the path of each file, all in one directory. This is `directory` itself or, for a bare
// name such as "fashion-mnist", the directory of that name below $LOCKSTEP_DATA or
// /usr/share/datasets. Errors: system, listing every searched place, if none of them has all files.
// `remedy` ends the message.
std::vector<std::filesystem::path> find_dataset(const std::filesystem::path& directory,
                                                const DatasetFiles& files,
                                                const std::string& remedy = "");

}  // namespace lockstep
