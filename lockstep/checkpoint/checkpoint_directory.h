// The folder of a training's checkpoints (docs/checkpoint-format.md), without LibTorch. Thread
// safety: none. Errors: system, with the file's name.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

inline constexpr std::string_view manifest_name = "manifest.json";
inline constexpr std::string_view latest_name = "latest";

std::string checkpoint_name(std::int64_t step);

std::optional<std::int64_t> step_in(std::string_view name);

// A path for unfinished data in the same folder, unique among concurrent processes.
std::filesystem::path beside(const std::filesystem::path& path);

struct StepDirectory {
  std::int64_t step = 0;
  std::filesystem::path path;
};

// Newest first. Empty if `root` does not exist.
std::vector<StepDirectory> find_checkpoints(const std::filesystem::path& root);

// `directory` if it is a checkpoint or no folder, otherwise its newest checkpoint, if any.
std::optional<std::string> find_checkpoint_in(const std::filesystem::path& directory);

// As find_checkpoint_in(). Errors: misuse if there is none.
std::string checkpoint_in(const std::filesystem::path& directory);

// The link `latest`, for users and scripts; the library never follows it. Logs only the first
// failure to set it; saving continues.
class LatestLink {
 public:
  // Checks whether `root` can hold a link. Ignores a full disk.
  explicit LatestLink(const std::filesystem::path& root);

  // Points the link to the name `target`, by a rename. Returns when the link is durable or failed.
  void set(const std::filesystem::path& target);

 private:
  void note_failure(int error);
  void forgo(const std::string& reason);

  const std::filesystem::path path_;
  bool is_forgone_ = false;  // Whether setting the link failed.
};

// Destruction without commit() removes the checkpoint.
class StagedCheckpoint {
 public:
  // Errors: misuse unless the step exceeds every existing checkpoint's.
  StagedCheckpoint(std::filesystem::path root, std::int64_t step);
  ~StagedCheckpoint();
  StagedCheckpoint(const StagedCheckpoint&) = delete;
  StagedCheckpoint& operator=(const StagedCheckpoint&) = delete;

  const std::filesystem::path& path() const { return path_; }

  // Requires: all other files are synced. Writes the manifest, renames the checkpoint to its final
  // name and points `latest` to it. Returns when everything is durable. After an Error, the
  // checkpoint has no final name.
  void commit(std::string_view manifest, LatestLink& latest);

 private:
  void require_new() const;
  void withdraw();

  const std::filesystem::path root_;
  const std::int64_t step_;
  const std::filesystem::path target_;
  std::filesystem::path path_;  // Empty if there is nothing to remove.
};

// Removes unfinished and half-removed checkpoints and links of killed jobs. Requires the WriteLock.
void remove_unfinished(const std::filesystem::path& root);

// Renames a damaged checkpoint, so that searches ignore it, and logs this.
void set_damaged_aside(const std::filesystem::path& checkpoint);

// As CheckpointerOptions::keep_last and keep_every. Renames each folder first, so that searches
// never find a partially removed one. Logs failures.
void remove_old(const std::filesystem::path& root, int keep_last, std::int64_t keep_every);

}  // namespace lockstep::checkpoint
