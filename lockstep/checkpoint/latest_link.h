// The link `latest` in a folder of checkpoints, to the one that was saved last. It is for people
// and their scripts: nothing of ours follows it, and checkpoints are saved where it cannot be, too.
// A file system may have no symbolic links, and something else may have its name, as in a folder
// that was copied with links followed. That is logged once.
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
  // Finds out, before there is anything to save, whether such a link can be in `root`.
  explicit LatestLink(const std::filesystem::path& root);

  // Empty when there is no link.
  std::filesystem::path target() const;

  // Makes it lead to the name `target` in its folder, by a rename; removes it if that is empty.
  // Does nothing where it cannot be.
  void set(const std::filesystem::path& target);

 private:
  std::optional<std::filesystem::path> make_aside(const std::filesystem::path& target);
  void forgo(const std::string& reason);

  const std::filesystem::path path_;
  bool is_forgone_ = false;  // Which was logged.
};

}  // namespace lockstep
