// Saves the state of a training, and finds the newest that is whole.
//
//   lockstep::Checkpointer checkpoints("runs/a", world, {.keep_last = 3, .async = true});
//   checkpoints.resume(state);                      // Or starts anew, if there is none yet.
//   ...
//   if (step % 100 == 0) checkpoints.save(step, state);
//   ...
//   checkpoints.wait();
//
// runs/a holds a folder for each checkpoint, step-0000000100 say, and the link `latest`. A folder
// is written aside, as step-0000000100.tmp-*, by all ranks together, and named when all of it is on
// the disk; it never changes afterwards. Whatever is killed, whenever: what has a name is whole.
// `latest` cannot be a link on a file system without links, or where something else has its name.
// That is logged once and changes nothing else: the newest is the one with the highest step.
// docs/checkpoint-format.md says what is in it; safetensors and JSON, for anybody to read.
//
// All ranks see the same folder. Ranks of one job write to it, no other job at a time: the folder
// is locked from the first resume() or save() on, as long as the Checkpointer lives. Gradients are
// no part of a state: save between steps, not between the passes that one accumulates.
//
// Thread safety: none; one training loop uses it.
// Lifetime: `state` outlives a call, not more. destroy_process_group() waits for what is being
// written, but what then goes wrong is only logged: call wait() first.
// Errors: on all ranks the same: system, naming who it is, when another job has the folder; system,
// naming the file, when one cannot be written, and then nothing of it is left and earlier
// checkpoints are as they were; mismatch when ranks have states
// that do not fit together; misuse; unsupported for tensors that safetensors has no type for; those
// of ProcessGroup.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

struct CheckpointerOptions {
  // How many of the newest checkpoints are kept when one more was saved; 0 for all.
  int keep_last = 0;

  // Those whose step is a multiple of it are kept for ever; 0 for none of that.
  std::int64_t keep_every = 0;

  // Whether save() returns once the state was copied in memory, and the copy is written while
  // training goes on. Takes as much memory as one checkpoint has bytes, of all ranks together.
  bool async = false;

  // Of each of the waits for other ranks, which may be writing to a slow disk.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

// A checkpoint that resume() did not take, and why.
struct SkippedCheckpoint {
  std::filesystem::path directory;
  std::string reason;
};

struct Resumed {
  std::int64_t step = 0;
  std::filesystem::path directory;
  std::vector<SkippedCheckpoint> skipped;  // Newer ones.
};

class LOCKSTEP_API Checkpointer {
 public:
  // Collective. `directory` is made by the first resume() or save().
  Checkpointer(std::filesystem::path directory, const ProcessGroup& group,
               CheckpointerOptions options = {});

  // For a process that trains alone.
  explicit Checkpointer(std::filesystem::path directory, CheckpointerOptions options = {});

  // Waits for what is being written, and logs what went wrong with it.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // Collective. Saves `state` as that after so many steps. With `async` what went wrong in the
  // background is thrown by the next call of save(), wait() or resume(), on all ranks; such a
  // save() has saved nothing itself.
  // Errors: misuse unless the step is higher than that of every checkpoint in the folder, but for
  // those that resume() has skipped: what is the newest would not be clear. To go back, use another
  // folder.
  void save(std::int64_t step, const NamedStates& state);

  // Until what was saved is on the disk. Collective with `async`.
  void wait();

  // Collective. Loads the newest checkpoint whose every byte is as it was written, and logs which
  // newer ones were skipped; nothing when there is none at all.
  // Those that were skipped get another name when the next one is saved: their steps may come
  // again. A folder that this user may only read is resumed from with a warning; programs that save
  // nothing there call load_checkpoint().
  // Errors: system when another job has the folder; corrupt, or system, when there are checkpoints
  // and none can be loaded; misuse, naming them, for parts, tensors or values that do not fit
  // `state`; mismatch for two unequal tensors that are one in it. `state` then is as it was.
  std::optional<Resumed> resume(const NamedStates& state);

 private:
  class Implementation;
  const std::unique_ptr<Implementation> implementation_;
};

// Collective: loads one checkpoint, at any number of ranks, or without a group in one process.
// `directory` is its folder, or one that holds checkpoints: then latest_checkpoint(). Returns its
// step. All was verified before anything of `state` is touched; then it is read a second time, from
// the page cache as a rule, to where it goes. Only if that fails, of which the message tells, is
// `state` half loaded.
// Errors: as CheckpointReader's and resume()'s, on all ranks.
LOCKSTEP_API std::int64_t load_checkpoint(const std::filesystem::path& directory,
                                          const NamedStates& state, const ProcessGroup& group);
LOCKSTEP_API std::int64_t load_checkpoint(const std::filesystem::path& directory,
                                          const NamedStates& state);

// The folder of the newest checkpoint in `directory`, by its name alone; nothing when there is
// none.
LOCKSTEP_API std::optional<std::filesystem::path> latest_checkpoint(
    const std::filesystem::path& directory);

// The folders of checkpoints in `directory`, the newest first, by their names alone.
LOCKSTEP_API std::vector<std::filesystem::path> list_checkpoints(
    const std::filesystem::path& directory);

}  // namespace lockstep
