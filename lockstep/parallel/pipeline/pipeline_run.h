// Executes this rank's actions of a PipelineOrder. Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/parallel/pipeline/rank_stages.h"
#include "lockstep/parallel/pipeline/split_backward.h"
#include "lockstep/parallel/pipeline/stage_messages.h"

namespace lockstep::parallel {

class PipelineRun {
 public:
  // Collective over `group`. `stages` outlive this object.
  PipelineRun(RankStages& stages, const ProcessGroup& group);

  // Collective. Results and Errors: as Pipeline::step() and evaluate().
  double train(const PassedValue& inputs, const LossOf& loss_of);

  double evaluate(const PassedValue& inputs, const LossOf& measure);

  std::size_t message_bytes() const { return messages_.bytes(); }

 private:
  // A microbatch in a stage, from its forward to the end of its backward.
  struct InFlight {
    Parcel input;                   // Leaves.
    std::vector<at::Tensor> roots;  // The loss, or outputs that need a gradient.
    std::optional<SplitBackward> split;
  };

  enum class Ending { tied_weights, means, losses };

  const std::vector<PipelineAction>& own_actions() const;
  double end_step(const PassedValue& inputs);

  // Runs act(). Its exception, with place(), ends the pipeline on all ranks.
  template <class Place, class Act>
  decltype(auto) guarded(const Place& place, const Act& act);
  void end_with(Ending ending, const std::function<void()>& act);
  void run(const PipelineAction& action, const PassedValue& inputs, const LossOf& loss_of);
  void forward(int stage, int microbatch, const PassedValue& inputs, const LossOf& loss_of);
  void backward(int stage, int microbatch, bool with_weights);
  void send_gradients(int stage, int microbatch, const std::vector<at::Tensor>& gradients);
  std::vector<at::Tensor> take_gradients(int stage, int microbatch, std::vector<at::Tensor>& roots);
  PassedValue input_of(int stage, int microbatch, const PassedValue& inputs, Parcel& parcel);

  void abort(const std::string& reason);
  [[noreturn]] void fail(const Error& error, std::string context);
  std::string text_of(const PipelineAction& action) const;
  std::string text_of(const Route& route) const;
  std::string last_of(int rank) const;
  Parcel receive(const Route& route);
  bool is_last(int stage) const { return stage + 1 == stages_.order().stages(); }

  RankStages& stages_;
  const ProcessGroup group_;
  StageMessages messages_;
  std::map<std::pair<int, int>, InFlight> in_flight_;  // By stage and microbatch.
  std::optional<Route> waiting_;                       // During receive().
  bool waits_for_all_ = false;                         // At the end of a step.
  double loss_ = 0;                                    // Sum so far.
  std::uint64_t calls_ = 0;                            // To train() and evaluate().
  bool is_training_ = true;
  bool is_broken_ = false;
};

}  // namespace lockstep::parallel
