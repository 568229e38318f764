// The folder of a training's checkpoints (docs/checkpoint-format.md), and the steps that create a
// checkpoint there. Does not depend on LibTorch. Thread safety: none. Errors: system, with the
// file's name.

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

// The step of such a name, if it is one.
std::optional<std::int64_t> step_in(std::string_view name);

// Returns a name beside `path` for unfinished data, unique among concurrent processes.
std::filesystem::path beside(const std::filesystem::path& path);

struct StepDirectory {
  std::int64_t step = 0;
  std::filesystem::path path;
};

// The folders with a step's name, newest first. Empty if `root` does not exist.
std::vector<StepDirectory> find_checkpoints(const std::filesystem::path& root);

// `directory` if it is a checkpoint or no folder, otherwise the newest checkpoint in it, if any.
std::optional<std::string> find_checkpoint_in(const std::filesystem::path& directory);

// The same. Errors: misuse if there is none.
std::string checkpoint_in(const std::filesystem::path& directory);

// The link `latest`, for users and scripts. The library never follows it. If it cannot be set,
// saving continues and the failure is logged once.
class LatestLink {
 public:
  // Checks whether `root` can hold a link. A full disk is not a failure yet.
  explicit LatestLink(const std::filesystem::path& root);

  // Points the link to the name `target` in its folder, by a rename. Returns when the link is
  // durable, or could not be set.
  void set(const std::filesystem::path& target);

 private:
  void note_failure(int error);
  void forgo(const std::string& reason);

  const std::filesystem::path path_;
  bool is_forgone_ = false;  // Whether setting the link has failed, which was logged.
};

// A checkpoint that is being written. Destruction without commit() removes it.
class StagedCheckpoint {
 public:
  // Errors: misuse unless the step is higher than that of every existing checkpoint.
  StagedCheckpoint(std::filesystem::path root, std::int64_t step);
  ~StagedCheckpoint();
  StagedCheckpoint(const StagedCheckpoint&) = delete;
  StagedCheckpoint& operator=(const StagedCheckpoint&) = delete;

  const std::filesystem::path& path() const { return path_; }

  // Call it when all files except the manifest are synced. Writes the manifest, renames the
  // checkpoint to its final name and points `latest` to it. Returns when everything is durable.
  // After an Error, the checkpoint has no final name.
  void commit(std::string_view manifest, LatestLink& latest);

 private:
  void require_new() const;
  void withdraw();

  const std::filesystem::path root_;
  const std::int64_t step_;
  const std::filesystem::path target_;
  std::filesystem::path path_;  // Empty if there is nothing to remove.
};

// Removes checkpoints that killed jobs left unfinished. Requires the WriteLock.
void remove_unfinished(const std::filesystem::path& root);

// Renames a damaged checkpoint so that searches ignore it, and logs it.
void set_damaged_aside(const std::filesystem::path& checkpoint);

// Removes all checkpoints except the `keep_last` newest ones and those whose step is a multiple of
// keep_every; none if keep_last is 0. Renames each folder first, so that searches never find a
// partially removed one. Failures are logged.
void remove_old(const std::filesystem::path& root, int keep_last, std::int64_t keep_every);

}  // namespace lockstep::checkpoint
