// The folder of a training's checkpoints, and the steps that create a checkpoint there:
//
//   step-0000000100/            a complete checkpoint, which never changes
//   step-0000000200.tmp-1f3a/   being written or removed, or left by a killed job
//   step-0000000150.damaged-2c/ a damaged checkpoint from which training could not resume
//   latest                      a link to the checkpoint that was saved last
//   .lock                       locked by the job that saves here: write_lock.h
//
// A step's folder is renamed to its final name after all of its contents were synced.
//
// Does not depend on LibTorch. Thread safety: none.
// Errors: system, with the file's name.

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

// Example: "step-0000000100".
std::string checkpoint_name(std::int64_t step);

// Returns the step of such a name; nothing for any other name.
std::optional<std::int64_t> step_in(std::string_view name);

// Returns a name beside `path` for unfinished data. Names of concurrent processes differ.
std::filesystem::path beside(const std::filesystem::path& path);

struct StepDirectory {
  std::int64_t step = 0;
  std::filesystem::path path;
};

// Returns the folders with a step's name, newest first. Empty if `root` does not exist.
std::vector<StepDirectory> find_checkpoints(const std::filesystem::path& root);

// Returns `directory` if it is a checkpoint or no folder, otherwise the newest checkpoint in it;
// nothing if it has none.
std::optional<std::string> find_checkpoint_in(const std::filesystem::path& directory);

// Returns the same. Errors: misuse if there is none.
std::string checkpoint_in(const std::filesystem::path& directory);

// The link `latest` to the checkpoint that was saved last, for users and scripts. The library never
// follows it, and saves checkpoints even if the link cannot be set. A file system may lack or
// refuse symbolic links, or be full. A file may have the link's name, for example after a folder
// was copied with links followed. Such a failure is logged once.
class LatestLink {
 public:
  // Checks before the first save whether `root` can hold a link. A full disk is not a failure yet.
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
  // Errors: misuse unless the step is higher than that of every existing checkpoint. A folder
  // belongs to one training, so the newest checkpoint has the highest step.
  StagedCheckpoint(std::filesystem::path root, std::int64_t step);
  ~StagedCheckpoint();
  StagedCheckpoint(const StagedCheckpoint&) = delete;
  StagedCheckpoint& operator=(const StagedCheckpoint&) = delete;

  // The folder for its files until commit().
  const std::filesystem::path& path() const { return path_; }

  // Call it when all files except the manifest are synced. Writes the manifest, renames the
  // checkpoint to its final name and points `latest` to it. Returns when everything is durable.
  // Errors: after an Error the checkpoint has no final name.
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

// Renames a damaged checkpoint so that searches ignore it, and logs it. Its step can then be saved
// again, and it does not count as a checkpoint to keep.
void set_damaged_aside(const std::filesystem::path& checkpoint);

// Removes all checkpoints except the `keep_last` newest ones and those whose step is a multiple of
// keep_every. Removes nothing if keep_last is 0. Each folder is renamed first, so that searches
// never find a partially removed one. Failures are logged.
void remove_old(const std::filesystem::path& root, int keep_last, std::int64_t keep_every);

}  // namespace lockstep::checkpoint
