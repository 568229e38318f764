// Saves the state of a training, and resumes from the newest complete checkpoint.
//
//   lockstep::Checkpointer checkpoints("runs/a", world, {.keep_last = 3, .async = true});
//   checkpoints.resume(state);                      // Or starts anew, if there is none yet.
//   ...
//   if (step % 100 == 0) checkpoints.save(step, state);
//   ...
//   checkpoints.wait();
//
// runs/a holds a folder for each checkpoint, for example step-0000000100, and the link `latest`.
// All ranks together write a folder under a temporary name, step-0000000100.tmp-*. It gets its
// final name when all of it is on the disk, and never changes afterwards. A folder with a final
// name is therefore complete, even if processes are killed at any time.
// `latest` is not set on a file system that refuses links or has no room for one, or if something
// else has its name. That is logged once and has no other effect: the newest checkpoint is the one
// with the highest step.
// docs/checkpoint-format.md describes the contents: safetensors and JSON, readable by other
// programs.
//
// All ranks see the same folder. Only one job at a time may write to it: the folder is locked from
// the first resume() or save() until the Checkpointer is destroyed. On a file system without
// flock() (NFS and Lustre may lack it), a warning is logged once, and nothing keeps a second job
// out. Gradients are not part of a state: save between steps, not between passes that accumulate
// gradients.
//
// Thread safety: none; one training loop uses it.
// Lifetime: `state` need only outlive the call. destroy_process_group() waits for a background
// write, but only logs its errors: call wait() first.
// Errors: equal on all ranks. system, naming the holder, if another job has locked the folder.
// system, naming the file, if a file cannot be written; the unfinished checkpoint is then removed,
// and earlier checkpoints are unchanged. mismatch if the ranks' states do not fit together; misuse;
// unsupported for tensors of a type that safetensors lacks; those of ProcessGroup.

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

  // Checkpoints whose step is a multiple of this are never removed; 0 disables that.
  std::int64_t keep_every = 0;

  // Whether save() returns after copying the state in memory; the copy is written while training
  // continues. The copies of all ranks together take the bytes of one checkpoint.
  bool async = false;

  // Limit of each wait for other ranks, which may be writing to a slow disk.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

// A checkpoint that resume() could not load, and the reason.
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

  // For a process that trains alone.
  explicit Checkpointer(std::filesystem::path directory, CheckpointerOptions options = {});

  // Waits for a background write and logs its errors.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // Collective, optional, only with `async`. Allocates the memory for copies of `state` in the
  // background. Without it, the first save() does so, which costs more time than the copy. Call it
  // after the first step: before, an optimizer has no state. A thread of each rank touches the
  // memory; it takes CPU time on the rank's cores meanwhile.
  // Blocking: waits for a save in progress, and throws that save's error.
  // Errors: misuse without `async`; system if a host has too little memory; mismatch and
  // unsupported as save().
  void prepare(const NamedStates& state);

  // Collective. Saves `state` as the state after `step` steps. With `async`, an error in the
  // background is thrown on all ranks by the next call of save(), prepare(), wait() or resume(). A
  // save() that throws it has saved nothing itself, and a prepare() has prepared nothing.
  // Errors: misuse unless the step is higher than that of every checkpoint in the folder; otherwise
  // it would be unclear which is the newest. Checkpoints that resume() has skipped do not count.
  // Use another folder to go back.
  void save(std::int64_t step, const NamedStates& state);

  // Waits until the saved state is on the disk. Collective with `async`.
  void wait();

  // Collective. Loads the newest undamaged checkpoint, in which every byte is verified, and logs
  // the newer ones that were skipped. Returns nothing if there is no checkpoint at all.
  // Skipped checkpoints are renamed when the next one is saved, because their steps may come again.
  // For a folder that this user can only read, it logs a warning and resumes. Programs that never
  // save there call load_checkpoint() instead.
  // Errors: system if another job has locked the folder; corrupt or system if there are checkpoints
  // but none can be loaded; misuse, naming them, for parts, tensors or values that do not fit
  // `state`; mismatch for two unequal tensors that are one in `state`. `state` is then unchanged.
  std::optional<Resumed> resume(const NamedStates& state);

 private:
  class Implementation;
  const std::unique_ptr<Implementation> implementation_;
};

// Collective: loads one checkpoint with any number of ranks, or without a group in one process.
// `directory` is its folder; for a folder of checkpoints, latest_checkpoint() is loaded. Returns
// its step. All bytes are verified before `state` is changed. Then they are read a second time,
// usually from the page cache, into their destination. If that read fails, `state` is half loaded
// and the message says so.
// Errors: as CheckpointReader's and resume()'s, on all ranks.
LOCKSTEP_API std::int64_t load_checkpoint(const std::filesystem::path& directory,
                                          const NamedStates& state, const ProcessGroup& group);
LOCKSTEP_API std::int64_t load_checkpoint(const std::filesystem::path& directory,
                                          const NamedStates& state);

// Returns the folder of the newest checkpoint in `directory`, judged only by its name; empty if
// there is none.
LOCKSTEP_API std::optional<std::filesystem::path> latest_checkpoint(
    const std::filesystem::path& directory);

// Returns the folders of checkpoints in `directory`, the newest first, judged only by their names.
LOCKSTEP_API std::vector<std::filesystem::path> list_checkpoints(
    const std::filesystem::path& directory);

}  // namespace lockstep
