// The link `latest` in a folder of checkpoints, which leads to the one that was saved last. It is
// meant for users and their scripts: the library never follows it, and saves checkpoints also where
// the link cannot exist. A file system may lack symbolic links. Something else may have the link's
// name, for example after copying a folder with links followed. That is logged once.
//
// Torch-free. Thread safety: none. Errors: system, naming the file.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lockstep {

class LatestLink {
 public:
  // Checks before the first save whether `root` can hold such a link.
  explicit LatestLink(const std::filesystem::path& root);

  // Empty if there is no link.
  std::filesystem::path target() const;

  // Points the link to the name `target` in its folder, by a rename; removes it if `target` is
  // empty. Does nothing if the link cannot exist.
  void set(const std::filesystem::path& target);

 private:
  std::optional<std::filesystem::path> make_aside(const std::filesystem::path& target);
  void forgo(const std::string& reason);

  const std::filesystem::path path_;
  bool is_forgone_ = false;  // The link cannot exist, and that was logged.
};

}  // namespace lockstep
