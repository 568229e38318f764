// A training's log: event files for TensorBoard, and run.json, which `lockstep report` reads
// (docs/guide/run-log.md, docs/run-json.md).
//
//   lockstep::RunLog log(world, {.tensorboard = "runs/a", .json = "run.json"});
//   for (auto& batch : loader) {
//     const auto step = log.step(batch.data.size(0));  // Ends with the scope.
//     ...
//     log.scalar("loss", loss);
//   }
//
// Rank 0 writes the files. Other ranks send reports every `interval`, without waiting. Ranks may
// log different scalars, differently often; a scalar's value in a step is the mean over the ranks
// that logged it.
//
// Thread safety: none; the training loop's thread uses it.
// Blocking: the constructor waits for all ranks, close() for at most the group's timeout. There,
// rank 0 waits until all have called it or destroyed the group, or one was lost. Others wait until
// their report is sent.
// Errors: system, on all ranks, if a file cannot be created. Later errors of files are logged;
// close() throws the first on rank 0. Lost ranks cause no Error here.
// Lifetime: destroy_process_group() ends a log that was not closed, even after its RunLog is
// destroyed.

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
  std::filesystem::path tensorboard = {};  // Folder for a new event file; empty: none.
  std::filesystem::path json = {};         // Replaced if it exists; empty: none.

  // For run.json: {"batch_size", "64"}.
  std::map<std::string, std::string> options = {};

  std::int64_t first_step = 0;  // For a resumed training.

  // Time between reports, and between writes: a killed run loses that much. Writes of a large
  // run.json take at most a hundredth of the time.
  std::chrono::milliseconds interval{2000};
};

class LOCKSTEP_API RunLog {
 public:
  class Step;

  // Collective. Uses only rank 0's file names.
  explicit RunLog(const ProcessGroup& group, RunLogOptions options = {});
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  // Begins the next step, which lasts until the result is destroyed. Step times in run.json include
  // gaps since the previous step. `samples`: of this rank. Does nothing without file names. Errors:
  // misuse during another step.
  [[nodiscard]] Step step(std::int64_t samples = 0);

  // Logs for the current step, or between steps for the last one. Replaces its earlier value.
  void scalar(std::string_view name, double value);
  void scalar(std::string_view name, const at::Tensor& value);  // One element.

  // Does nothing on ranks other than 0. Takes about 20 ms per million values.
  void histogram(std::string_view name, const at::Tensor& values);
  void text(std::string_view name, std::string_view text);

  // Ends the log. Further calls do nothing.
  void close();

 private:
  class State;

  std::shared_ptr<State> state_;  // Null without files.
};

// Not assignable: a step must end before the next one begins.
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
