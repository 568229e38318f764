// The folder of a training's checkpoints, and the steps by which a checkpoint is created there:
//
//   step-0000000100/            one checkpoint, complete; nothing in it is written any more
//   step-0000000200.tmp-1f3a/   being written or removed, or was when its job was killed
//   step-0000000150.damaged-2c/ training that saves here could not be resumed from it
//   latest                      a link to the one that was saved last
//   .lock                       a file that the job which saves here has locked: write_lock.h
//
// A step's folder gets its name by a rename, after all of its contents were forced to the disk.
//
// Torch-free.
// Thread safety: none.
// Errors: system, naming the file.

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

// Returns the step in such a name; empty for any other name.
std::optional<std::int64_t> step_in(std::string_view name);

// Returns a name beside `path` for unfinished data. No other process chooses the same name at the
// same time.
std::filesystem::path beside(const std::filesystem::path& path);

struct StepDirectory {
  std::int64_t step = 0;
  std::filesystem::path path;
};

// Returns the folders with a step's name, the newest first. Empty if `root` does not exist.
std::vector<StepDirectory> find_checkpoints(const std::filesystem::path& root);

// Returns the checkpoint that `directory` means: itself, or the newest in it. Errors: misuse if
// there is none in it.
std::string checkpoint_in(const std::filesystem::path& directory);

// The link `latest` in a folder of checkpoints, which leads to the one that was saved last. It is
// meant for users and their scripts: the library never follows it, and saves checkpoints also where
// the link cannot be set. A file system may lack symbolic links, refuse them with any error, or be
// full. Something else may have the link's name, for example after copying a folder with links
// followed. That is logged once.
class LatestLink {
 public:
  // Checks before the first save whether `root` can hold such a link. A disk that is full now may
  // have room by then.
  explicit LatestLink(const std::filesystem::path& root);

  // Points the link to the name `target` in its folder, by a rename. Returns when the link would
  // survive a power failure, or when it could not be set.
  void set(const std::filesystem::path& target);

 private:
  void note_failure(int error);
  void forgo(const std::string& reason);

  const std::filesystem::path path_;
  bool is_forgone_ = false;  // The link could not be set once, and that was logged.
};

// A checkpoint that is being written. The destructor removes it unless commit() has succeeded.
class StagedCheckpoint {
 public:
  // Errors: misuse unless the step is higher than that of every existing checkpoint. One folder
  // holds one line of training, so the newest checkpoint is the one with the highest step.
  StagedCheckpoint(std::filesystem::path root, std::int64_t step);
  ~StagedCheckpoint();
  StagedCheckpoint(const StagedCheckpoint&) = delete;
  StagedCheckpoint& operator=(const StagedCheckpoint&) = delete;

  // The folder in which its files are written until commit().
  const std::filesystem::path& path() const { return path_; }

  // Call when all files but the manifest are on the disk. Writes the manifest, gives the checkpoint
  // its name and points `latest` to it. Returns when everything would survive a power failure.
  // Errors: after an Error the checkpoint has no name.
  void commit(std::string_view manifest, LatestLink& latest);

 private:
  void require_new() const;
  void withdraw();

  const std::filesystem::path root_;
  const std::int64_t step_;
  const std::filesystem::path target_;
  std::filesystem::path path_;  // Empty if there is nothing to remove.
};

// Removes checkpoints whose job was killed while it wrote them. Call it under the WriteLock.
void remove_unfinished(const std::filesystem::path& root);

// Renames a damaged checkpoint to a name that no search finds, and logs it. Its step can then be
// saved again, and it no longer counts as one to keep.
void set_damaged_aside(const std::filesystem::path& checkpoint);

// Removes all checkpoints except the `keep_last` newest and those whose step is a multiple of
// keep_every. Removes nothing if keep_last is 0. Each folder is renamed first, so that a half
// removed one is never found. Failures are logged.
void remove_old(const std::filesystem::path& root, int keep_last, std::int64_t keep_every);

}  // namespace lockstep::checkpoint
