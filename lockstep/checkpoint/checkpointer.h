// Saves the state of a training, and resumes from the newest complete checkpoint
// (docs/guide/checkpoints.md).
//
//   lockstep::Checkpointer checkpoints("runs/a", world, {.keep_last = 3, .async = true});
//   checkpoints.resume(state);  // Without a checkpoint, changes nothing.
//   ...
//   if (step % 100 == 0) checkpoints.save(step, state);
//
// All ranks write a folder such as step-0000000100 together. It gets this name when all of it is
// synced, and never changes afterwards. A folder with such a name is therefore complete, even if
// processes are killed at any time.
//
// All ranks must see the same folder. It is locked from the first resume() or save() until the
// Checkpointer is destroyed. Gradients are not saved: do not save while they accumulate.
//
// Thread safety: none.
// Lifetime: `state` need only outlive the call. destroy_process_group() waits for a background
// write, but only logs its errors: call wait() first.
// Errors, equal on all ranks: system, naming the holder, if another job has locked the folder.
// system, naming the file, if it cannot be written: the unfinished checkpoint is then removed.
// mismatch if the ranks' states do not fit together; misuse; unsupported for tensor types that
// safetensors lacks; those of ProcessGroup.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/weights.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

struct CheckpointerOptions {
  // Number of newest checkpoints to keep after each save; 0 keeps all.
  int keep_last = 0;

  // Checkpoints whose step is a multiple of this are never removed; 0 disables this.
  std::int64_t keep_every = 0;

  // Whether save() returns after copying the state, which is written while training continues. The
  // copies of all ranks together need the memory of one checkpoint.
  bool async = false;

  // Limit of each wait for other ranks, which may be writing to a slow disk.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

struct SkippedCheckpoint {
  std::filesystem::path directory;
  std::string reason;
};

struct Resumed {
  std::int64_t step = 0;
  std::filesystem::path directory;
  std::vector<SkippedCheckpoint> skipped;  // Checkpoints newer than the loaded one.
};

class LOCKSTEP_API Checkpointer {
 public:
  // Collective. The first resume() or save() creates `directory`.
  Checkpointer(std::filesystem::path directory, const ProcessGroup& group,
               CheckpointerOptions options = {});

  // For a single process.
  explicit Checkpointer(std::filesystem::path directory, CheckpointerOptions options = {});

  // Waits for a background write and logs its errors.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // Collective, optional, only with `async`. Allocates the memory for copies of `state` on a
  // background thread. Otherwise the first save() allocates it, which takes longer than the copy.
  // Call it after the first step: before, an optimizer has no state.
  // Blocking: waits for a save in progress, and throws its error.
  // Errors: misuse without `async`; system if a host has too little memory; mismatch and
  // unsupported as save().
  void prepare(const NamedStates& state);

  // Collective. Saves `state` as the state after `step` steps. With `async`, all ranks throw a
  // background error in the next call of save(), prepare(), wait() or resume(), which does nothing
  // else.
  // Errors: misuse unless the step is higher than that of every checkpoint in the folder, except
  // those that resume() has skipped. To go back, use another folder.
  void save(std::int64_t step, const NamedStates& state);

  // Waits until the saved state is synced to the disk. Collective with `async`.
  void wait();

  // Collective. Loads the newest undamaged checkpoint, verifies every byte, and logs newer
  // checkpoints that it skipped, which the next save() renames. Returns nothing if there is no
  // checkpoint. For a read-only folder, it logs a warning; programs that never save there call
  // load_checkpoint() instead.
  // Errors, with `state` unchanged: system if another job has locked the folder. corrupt or system
  // if there are checkpoints, but none can be loaded. misuse, naming them, for parts, tensors or
  // values that do not fit `state`. mismatch for two unequal tensors that are one in `state`.
  std::optional<Resumed> resume(const NamedStates& state);

 private:
  class Implementation;
  const std::unique_ptr<Implementation> implementation_;
};

// Collective: loads one checkpoint on any number of ranks, or in one process without a group.
// `directory` is its folder, or a folder of checkpoints, of which the latest is loaded. Returns its
// step. All bytes are verified before `state` changes, then read again, usually from the page
// cache. If that fails, `state` is partially updated, and the message reports it. Errors: as
// CheckpointReader's and resume()'s, on all ranks.
LOCKSTEP_API std::int64_t load_checkpoint(const std::filesystem::path& directory,
                                          const NamedStates& state, const ProcessGroup& group);
LOCKSTEP_API std::int64_t load_checkpoint(const std::filesystem::path& directory,
                                          const NamedStates& state);

// The newest checkpoint in `directory`, judged only by its name; empty if there is none.
LOCKSTEP_API std::optional<std::filesystem::path> latest_checkpoint(
    const std::filesystem::path& directory);

// All checkpoints in `directory`, newest first, judged only by their names.
LOCKSTEP_API std::vector<std::filesystem::path> list_checkpoints(
    const std::filesystem::path& directory);

}  // namespace lockstep
