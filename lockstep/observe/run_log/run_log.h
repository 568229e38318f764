// A training's log: event files for TensorBoard, and run.json, which `lockstep report` reads.
//
//   lockstep::RunLog log(world, {.tensorboard = "runs/a", .json = "run.json"});
//   for (auto& batch : loader) {
//     const auto step = log.step(batch.data.size(0));
//     ...
//     log.scalar("loss", loss);  // The mean over ranks: no collective, and nobody waits.
//   }
//
// Rank 0 writes the files. All ranks report to it every `interval`, in messages for which no rank
// waits. Ranks may log different scalars, and differently often; a scalar's value in a step is the
// mean over the ranks that logged it there. The last reports come when close() is called, or the
// group is destroyed. A run that is killed leaves files that can be loaded, without the last
// seconds; a run that ends by an exception leaves what rank 0 has.
//
// run.json has the split of every step of every rank (job/step_times.h), and means of scalars.
// docs/run-json.md defines it.
//
// Cost: step() and scalar() take a fraction of a microsecond. Without file names they do nothing.
//
// Thread safety: none; the thread of the training loop uses it.
// Blocking: the constructor waits for all ranks. close() waits until all ranks have called it, have
// destroyed the group, or one was lost; at most for the group's timeout.
// Errors: system, on all ranks, if a file cannot be written at the start. Later errors of files are
// logged, and close() throws the first on rank 0. Lost ranks are no Error here.
// Lifetime: a RunLog that goes before its group leaves its end to destroy_process_group().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace at {
class Tensor;
}

namespace lockstep {

struct RunLogOptions {
  std::filesystem::path tensorboard = {};  // Folder for a new event file; empty for none.
  std::filesystem::path json = {};         // Replaced if it exists; empty for none.

  // For run.json: such as {"batch_size", "64"}.
  std::map<std::string, std::string> options = {};

  std::int64_t first_step = 0;  // Number of the next step of a resumed training.

  // Between reports of a rank, and between writes. A killed run loses that much. A write of a large
  // run.json is delayed further, so that writing takes at most a hundredth of the time.
  std::chrono::milliseconds interval{2000};
};

class LOCKSTEP_API RunLog {
 public:
  class Step;

  // Collective. Rank 0's files count.
  explicit RunLog(const ProcessGroup& group, RunLogOptions options = {});
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  // Begins the next step, which lasts until the result is destroyed. Its times in run.json begin
  // where the previous step ended, so the time between steps counts, too. `samples`: of this rank.
  [[nodiscard]] Step step(std::int64_t samples = 0);

  // Of the step under way, or of the last one. Of several values in a step, the last counts.
  void scalar(std::string_view name, double value);
  void scalar(std::string_view name, const at::Tensor& value);  // One element.

  // Of rank 0's values; does nothing on other ranks. Reads all of them: about 20 ms per million.
  void histogram(std::string_view name, const at::Tensor& values);
  void text(std::string_view name, std::string_view text);

  // Ends the log. Further calls do nothing.
  void close();

 private:
  class State;

  std::shared_ptr<State> state_;  // Null without files.
};

// Can be moved, for example into a std::optional, but not assigned: a step has to end before the
// next one begins.
class LOCKSTEP_API RunLog::Step {
 public:
  Step(Step&& other) noexcept;
  ~Step();
  Step& operator=(const Step&) = delete;

 private:
  friend class RunLog;
  explicit Step(State* state) : state_(state) {}

  State* state_;  // Null without files, and after a move.
};

}  // namespace lockstep
