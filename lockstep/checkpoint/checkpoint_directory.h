// The folder in which the checkpoints of a training lie, and how one comes to be there:
//
//   step-0000000100/            one checkpoint, whole; nothing in it is written to any more
//   step-0000000200.tmp-1f3a/   being written or removed, or was when its job was killed
//   step-0000000150.damaged-2c/ training that saves here could not be resumed from it
//   latest                      a link to the one that was saved last: latest_link.h
//   .lock                       a file that the job which saves here has locked: write_lock.h
//
// A step's folder gets its name by a rename, after all that is in it was forced to the disk.
//
// Torch-free. Errors: system, naming the file.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

class LatestLink;

inline constexpr std::string_view manifest_name = "manifest.json";
inline constexpr std::string_view latest_name = "latest";

// Such as "step-0000000100".
std::string checkpoint_name(std::int64_t step);

// The step in such a name; nothing for any other.
std::optional<std::int64_t> step_in(std::string_view name);

// A name beside `path`, of what is unfinished, that no other process chooses at the same time.
std::filesystem::path beside(const std::filesystem::path& path);

struct StepDirectory {
  std::int64_t step = 0;
  std::filesystem::path path;
};

// Those that have a step's name, the newest first. None when there is no such directory.
std::vector<StepDirectory> find_checkpoints(const std::filesystem::path& root);

// A checkpoint that is being written. Without commit() nothing is left of it.
class StagedCheckpoint {
 public:
  // Errors: misuse unless the step is higher than that of any checkpoint that is there: one folder
  // holds one line of training, so that the newest is the one with the highest step.
  StagedCheckpoint(std::filesystem::path root, std::int64_t step);
  ~StagedCheckpoint();
  StagedCheckpoint(const StagedCheckpoint&) = delete;
  StagedCheckpoint& operator=(const StagedCheckpoint&) = delete;

  // Where its files are written, until commit().
  const std::filesystem::path& path() const { return path_; }

  // All files but the manifest are on the disk: writes that, and gives the checkpoint its name and
  // `latest` its new target. Returns when all of it would outlast a power failure.
  // After an Error it has no name.
  void commit(std::string_view manifest, LatestLink& latest);

 private:
  void require_new() const;
  void withdraw(LatestLink& latest, const std::filesystem::path& latest_before) noexcept;

  const std::filesystem::path root_;
  const std::int64_t step_;
  const std::filesystem::path target_;
  std::filesystem::path path_;  // Empty once there is nothing to remove.
};

// What was being written when its job was killed. Call it under the WriteLock.
void remove_unfinished(const std::filesystem::path& root);

// Gives a checkpoint that was found damaged another name, under which nobody looks for one, so that
// its step can be saved again and it does not count as one to keep; logs it.
void set_damaged_aside(const std::filesystem::path& checkpoint);

// All checkpoints but the `keep_last` newest, and those whose step is a multiple of keep_every;
// none when keep_last is 0. Each loses its name first, so that what is half removed is not found.
// What cannot be removed is logged.
void remove_old(const std::filesystem::path& root, int keep_last, std::int64_t keep_every);

}  // namespace lockstep
