// Saves and resumes the state of a training (docs/guide/checkpoints.md).
//
//   lockstep::Checkpointer checkpoints("runs/a", world, {.keep_last = 3, .async = true});
//   checkpoints.resume(state);  // Without a checkpoint, changes nothing.
//   ...
//   if (step % 100 == 0) checkpoints.save(step, state);
//
// All ranks together write a folder such as step-0000000100. It gets this name when synced, and
// never changes afterwards: it is complete, even if processes are killed.
//
// All ranks must see the same `directory`. Rank 0's Checkpointer locks it from the first resume()
// or save() until destruction. Gradients are not saved: do not save while they accumulate.
//
// Thread safety: none.
// Lifetime: `state` need only outlive the call. destroy_process_group() waits for a background
// write, but does not report its errors: call wait() first.
// Errors, equal on all ranks: system, naming the holder, if another job has locked the folder.
// system, naming the file, if writing fails: the unfinished checkpoint is then removed. mismatch if
// the ranks' states do not fit together; misuse; unsupported for types that safetensors lacks;
// those of ProcessGroup.

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
  // Newest checkpoints to keep; 0: all.
  int keep_last = 0;

  // Also keeps checkpoints whose step is a multiple of this; 0: none.
  std::int64_t keep_every = 0;

  // Whether save() returns after copying the state, and writes it in the background. The copies of
  // all ranks together need the memory of one checkpoint.
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
  [[deprecated("pass a group")]] explicit Checkpointer(const std::filesystem::path& directory,
                                                       const CheckpointerOptions& options = {})
      : Checkpointer(directory, ProcessGroup::self(), options) {}

  // Waits for a background write; logs its errors.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // Collective, optional. Allocates the memory for copies of `state` on a background thread: in the
  // first save(), this would take longer than the copy. Call it after the first step, when
  // optimizers have state.
  // Blocking: for a save in progress, whose error it throws.
  // Errors: misuse without `async`; system for too little memory; mismatch and unsupported as
  // save().
  void prepare(const NamedStates& state);

  // Collective. Saves `state` as that after `step` steps. With `async`, the next prepare(), save(),
  // wait() or resume() throws a background error, on all ranks, and does nothing else.
  // Errors: misuse unless `step` exceeds that of every checkpoint in the folder, except those that
  // resume() has skipped. To go back, use another folder.
  void save(std::int64_t step, const NamedStates& state);

  // Waits until the saved state is synced to the disk. Collective with `async`.
  void wait();

  // Collective. Loads the newest undamaged checkpoint, verifies every byte, and logs skipped newer
  // checkpoints, which the next save() renames. Returns nothing without a checkpoint. Warns about a
  // read-only folder; programs that never save there call load_checkpoint().
  // Errors, with `state` unchanged unless the message reports a change: corrupt or system if no
  // checkpoint can be loaded. misuse, naming them, for parts, tensors or values that do not fit
  // `state`. mismatch for unequal saved tensors that are one in `state`.
  std::optional<Resumed> resume(const NamedStates& state);

 private:
  class Implementation;
  const std::unique_ptr<Implementation> implementation_;
};

// Collective: loads the checkpoint `directory`, or else the newest one in it, on any number of
// ranks.
// Ignores saved parts that `state` lacks. Returns the step. Verifies bytes before `state`
// changes, then reads them again. If the second read fails, the message reports that `state` is
// partially updated. Errors: as CheckpointReader's and resume()'s, on all ranks.
LOCKSTEP_API std::int64_t load_checkpoint(const std::filesystem::path& directory,
                                          const NamedStates& state, const ProcessGroup& group);
[[deprecated("pass a group")]] inline std::int64_t load_checkpoint(
    const std::filesystem::path& directory, const NamedStates& state) {
  return load_checkpoint(directory, state, ProcessGroup::self());
}

// The newest checkpoint in `directory`, judged only by its name.
LOCKSTEP_API std::optional<std::filesystem::path> latest_checkpoint(
    const std::filesystem::path& directory);

// All of them, newest first.
LOCKSTEP_API std::vector<std::filesystem::path> list_checkpoints(
    const std::filesystem::path& directory);

}  // namespace lockstep
