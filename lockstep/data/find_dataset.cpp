// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/find_dataset.h"

#include <cstdlib>
#include <optional>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Path = std::filesystem::path;

std::vector<Path> places(const Path& directory) {
  std::vector<Path> all{directory};
  if (directory.has_parent_path() || directory.empty()) return all;
  const char* root = std::getenv("LOCKSTEP_DATA");
  if (root != nullptr && *root != '\0') all.push_back(Path(root) / directory);
  all.push_back(Path("/usr/share/datasets") / directory);
  return all;
}

// A file that exists but cannot be examined counts as present; opening it then reports the reason.
bool is_there(const Path& file) {
  std::error_code failure;
  return std::filesystem::exists(file, failure) || failure;
}

std::optional<Path> find_file(const Path& file, bool packed) {
  if (is_there(file)) return file;
  Path with_suffix = file;
  with_suffix += ".gz";
  if (packed && is_there(with_suffix)) return with_suffix;
  return std::nullopt;
}

}  // namespace

std::vector<Path> find_dataset(const Path& directory, const DatasetFiles& files,
                               const std::string& remedy) {
  std::string looked_at;
  for (const Path& place : places(directory)) {
    std::vector<Path> found;
    for (const std::string& name : files.names) {
      const auto file = find_file(place / name, files.packed);
      if (!file) {
        looked_at += "\n  " + (place / name).string() + (files.packed ? "[.gz]" : "");
        break;
      }
      found.push_back(*file);
    }
    if (found.size() == files.names.size()) return found;
  }
  throw Error(Fault::system, "no dataset '" + directory.string() + "': there is no" + looked_at +
                                 (remedy.empty() ? "" : "\n" + remedy));
}

}  // namespace lockstep
