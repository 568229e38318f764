// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/pipeline_run.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/job/step_times.h"
#include "lockstep/tensor/generator_states.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep::parallel {
namespace {

PassedValue part_of(const PassedValue& inputs, const Microbatch& part) {
  PassedValue value{{}, inputs.structure};
  for (const at::Tensor& rows : inputs.tensors) value.tensors.push_back(part.of(rows));
  return value;
}

void require_rows(const PassedValue& inputs, int microbatches) {
  require(!inputs.tensors.empty(), "Pipeline: the inputs have no tensor");
  for (const at::Tensor& rows : inputs.tensors)
    require(rows.dim() > 0 && rows.size(0) >= microbatches, [&] {
      return "Pipeline: a batch with " + std::to_string(rows.dim() > 0 ? rows.size(0) : 0) +
             " rows cannot be cut into " + std::to_string(microbatches) + " microbatches";
    });
}

// Random numbers of a step or evaluation: different on each rank of the pipeline, equal on tensor
// parallel ranks. Equal default generators stay equal.
class StageRandom {
 public:
  explicit StageRandom(int rank) : seed_(drawn_seed(static_cast<std::uint64_t>(rank))) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seed_);
  }

 private:
  const std::uint64_t seed_;
  const KeptGenerator kept_;
};

// By PipelineRun::Ending.
constexpr std::array<std::string_view, 3> endings{"end of a step: sum of tied weights' gradients",
                                                  "end of a step: means of gradients",
                                                  "end of a step: sum of losses"};

std::uint64_t batch_digest(const PassedValue& inputs) {
  std::string text = inputs.structure;
  for (const at::Tensor& tensor : inputs.tensors)
    text += c10::str(' ', tensor.sizes(), digest_of(tensor));
  return hash_of_elements(text);
}

// Errors: mismatch, with the ranks whose batches differ from rank 0's.
void require_equal_batches(const std::vector<StepReport>& reports, std::uint64_t call,
                           const ProcessGroup& group) {
  std::vector<int> others;
  std::string text;
  for (int rank = 0; rank < group.size(); ++rank) {
    const StepReport& first = reports.front();
    const StepReport& report = reports[static_cast<std::size_t>(rank)];
    if (report.rows == first.rows && report.digest == first.digest) continue;
    others.push_back(rank);
    text += ", rank " + std::to_string(job_rank(group, rank)) + ' ';
    text += report.rows == first.rows ? "other values" : std::to_string(report.rows) + " rows";
  }
  if (others.empty()) return;
  throw Error(
      Fault::mismatch,
      "in call " + std::to_string(call) + " the ranks of a pipeline have different batches: rank " +
          std::to_string(job_rank(group, 0)) + " has " + std::to_string(reports.front().rows) +
          " rows" + text + ". Samplers deal batches to data parallel ranks, such as mesh[\"dp\"]",
      others);
}

std::string_view verb(PipelineActionKind kind) {
  switch (kind) {
    case PipelineActionKind::forward:
      return "forward";
    case PipelineActionKind::backward:
      return "backward";
    case PipelineActionKind::backward_input:
      return "backward of the input";
    case PipelineActionKind::backward_weight:
      return "backward of the weights";
  }
  return "?";
}

// Moves gradients out of `.grad`.
std::vector<at::Tensor> taken(const std::vector<at::Tensor>& leaves) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& leaf : leaves) gradients.push_back(std::exchange(leaf.mutable_grad(), {}));
  return gradients;
}

std::vector<at::Tensor> leaves_of(const Parcel& parcel) {
  std::vector<at::Tensor> leaves;
  for (std::size_t i = 0; i < parcel.tensors.size(); ++i)
    if (parcel.needs_gradient[i]) leaves.push_back(parcel.tensors[i]);
  return leaves;
}

}  // namespace

PipelineRun::PipelineRun(RankStages& stages, const ProcessGroup& group)
    : stages_(stages),
      group_(group.split(0, group.rank(), {.label = "pipeline"})),
      messages_(group_, stages.order()) {}

template <class Place, class Act>
decltype(auto) PipelineRun::guarded(const Place& place, const Act& act) {
  const auto mark_broken = [&] {
    is_broken_ = true;
    in_flight_.clear();
    return place() + ", rank " + std::to_string(job_rank(group_, group_.rank()));
  };
  try {
    return act();
  } catch (const Error& error) {
    fail(error, mark_broken());
  } catch (...) {
    abort(mark_broken() + ", threw: " + exception_text(std::current_exception()));
    throw;
  }
}

double PipelineRun::train(const PassedValue& inputs, const LossOf& loss_of) {
  require(!is_broken_, "Pipeline: an earlier step failed, so the pipeline cannot be used");
  require_rows(inputs, stages_.order().microbatches);
  is_training_ = true;
  loss_ = 0;
  std::optional<StageRandom> random;
  std::unique_ptr<DataParallelBase::NoSync> alone;
  guarded([&] { return text_of(own_actions().front()); },
          [&] {
            random.emplace(group_.rank());
            alone = stages_.no_sync();
            stages_.begin_step();
          });
  for (int place = 0; const PipelineAction& action : own_actions()) {
    messages_.set_place(place++);
    run(action, inputs, loss_of);
  }
  alone.reset();
  end_with(Ending::tied_weights, [&] { stages_.add_tied_gradients(); });
  end_with(Ending::means, [&] { stages_.average_gradients(); });
  return end_step(inputs);
}

// Runs stage by stage, which cannot deadlock.
double PipelineRun::evaluate(const PassedValue& inputs, const LossOf& measure) {
  require(!is_broken_, "Pipeline: an earlier step failed, so the pipeline cannot be used");
  require_rows(inputs, stages_.order().microbatches);
  const at::NoGradGuard no_grad;
  const StageRandom random(group_.rank());
  is_training_ = false;
  loss_ = 0;
  const PipelineOrder& order = stages_.order();
  for (int stage = 0; stage < order.stages(); ++stage)
    if (order.rank_of_stage[static_cast<std::size_t>(stage)] == group_.rank())
      for (int microbatch = 0; microbatch < order.microbatches; ++microbatch) {
        const PipelineAction action{stage, PipelineActionKind::forward, microbatch};
        const auto place = std::ranges::find(own_actions(), action);
        messages_.set_place(static_cast<int>(place - own_actions().begin()));
        run(action, inputs, measure);
      }
  return end_step(inputs);
}

const std::vector<PipelineAction>& PipelineRun::own_actions() const {
  return stages_.order().actions[static_cast<std::size_t>(group_.rank())];
}

void PipelineRun::end_with(Ending ending, const std::function<void()>& act) {
  const auto place = static_cast<std::size_t>(ending);
  messages_.set_place(static_cast<int>(own_actions().size() + place));
  guarded([&] { return std::string(endings.at(place)); }, act);
}

double PipelineRun::end_step(const PassedValue& inputs) {
  // A digest costs as much as a copy of the batch.
  const bool compares = std::has_single_bit(++calls_);
  std::vector<StepReport> reports;
  end_with(Ending::losses, [&] {
    waits_for_all_ = true;
    reports = messages_.end_step({.loss = loss_,
                                  .rows = inputs.tensors.front().size(0),
                                  .digest = compares ? batch_digest(inputs) : 0});
    waits_for_all_ = false;
  });
  require_equal_batches(reports, calls_, group_);
  double loss = 0;
  for (const StepReport& report : reports) loss += report.loss;
  return loss;
}

void PipelineRun::run(const PipelineAction& action, const PassedValue& inputs,
                      const LossOf& loss_of) {
  const auto& [stage, kind, microbatch] = action;
  const InPhase phase(kind == PipelineActionKind::forward ? StepPhase::forward
                                                          : StepPhase::backward);
  const auto place = [&] { return text_of(action); };
  guarded(place, [&] {
    switch (kind) {
      case PipelineActionKind::forward:
        forward(stage, microbatch, inputs, loss_of);
        break;
      case PipelineActionKind::backward:
      case PipelineActionKind::backward_input:
        backward(stage, microbatch, kind == PipelineActionKind::backward);
        break;
      case PipelineActionKind::backward_weight:
        in_flight_.extract({stage, microbatch}).mapped().split->weights();
        break;
    }
    stages_.after(action);
  });
}

void PipelineRun::abort(const std::string& reason) {
  group_.abort(reason);
  stages_.abort(reason);
}

void PipelineRun::fail(const Error& error, std::string context) {
  int peer = -1;
  if (waiting_) {
    peer = messages_.rank_from(*waiting_);
    context += "; waited for " + text_of(*waiting_) + ", which" + last_of(peer);
  }
  if (error.fault() == Fault::peer_lost && error.failure()) {
    int lost = 0;
    while (lost < group_.size() && job_rank(group_, lost) != error.failure()->rank) ++lost;
    if (lost == group_.size())  // Others may have no group with the lost rank.
      group_.abort(context + ": " + error.what());
    else if (lost != peer)
      context += "; rank " + std::to_string(error.failure()->rank) + last_of(lost);
    stages_.abort(context + ": " + error.what());
    throw Error(context, *error.failure());
  }
  if (waits_for_all_)  // Otherwise these are ranks of another group.
    for (const int rank : error.ranks())
      context += "; rank " + std::to_string(job_rank(group_, rank)) + last_of(rank);
  const Error with_context(error.fault(), context + ": " + error.what(), error.ranks());
  abort(with_context.what());
  throw Error(with_context);
}

// Such as " was last in 1F3: forward of microbatch 3 in stage 1 (layer h.0)". Between steps, a rank
// is still at the first one's end.
std::string PipelineRun::last_of(int rank) const {
  const auto place = messages_.place_of(rank);
  if (!place) return " is on another host, or has not begun";
  const auto& theirs = stages_.order().actions[static_cast<std::size_t>(rank)];
  const auto at = static_cast<std::size_t>(*place);
  std::string text = " was last in ";
  text += at < theirs.size() ? text_of(theirs[at]) : std::string(endings.at(at - theirs.size()));
  return text;
}

std::string PipelineRun::text_of(const Route& route) const {
  const bool is_output = route.way == Way::output;
  std::string text = is_output ? "the output" : "the gradient";
  text += " of microbatch " + std::to_string(route.microbatch);
  text += " from " + stages_.text_of(route.boundary + (is_output ? 0 : 1)) + ", rank ";
  text += std::to_string(job_rank(group_, messages_.rank_from(route)));
  return text;
}

std::string PipelineRun::text_of(const PipelineAction& action) const {
  std::string text = to_string(action);
  text += ": ";
  text += verb(action.kind);
  text += " of microbatch " + std::to_string(action.microbatch);
  text += " in " + stages_.text_of(action.stage);
  return text;
}

Parcel PipelineRun::receive(const Route& route) {
  waiting_ = route;
  Parcel parcel = messages_.receive(route);
  waiting_.reset();
  return parcel;
}

PassedValue PipelineRun::input_of(int stage, int microbatch, const PassedValue& inputs,
                                  Parcel& parcel) {
  if (stage == 0) return part_of(inputs, {microbatch, stages_.order().microbatches});
  parcel = receive({Way::output, stage - 1, microbatch});
  if (is_training_)
    for (std::size_t i = 0; i < parcel.tensors.size(); ++i)
      if (parcel.needs_gradient[i])
        parcel.tensors[i] = parcel.tensors[i].detach().requires_grad_(true);
  return {parcel.tensors, parcel.structure};
}

void PipelineRun::forward(int stage, int microbatch, const PassedValue& inputs,
                          const LossOf& loss_of) {
  InFlight state;
  PassedValue output = stages_.forward(stage, input_of(stage, microbatch, inputs, state.input));
  const Microbatch part{microbatch, stages_.order().microbatches};
  if (is_last(stage)) {
    const at::Tensor loss = loss_of(output, part);
    require(loss.defined() && loss.numel() == 1,
            "Pipeline: the loss of a microbatch is a tensor with one element");
    const at::Tensor share = loss / part.count;
    loss_ += share.item<double>();
    require(!is_training_ || share.requires_grad(),
            "Pipeline: the loss does not depend on the output of the last layer");
    state.roots = {share};
  } else {
    Parcel parcel{.tensors = {}, .needs_gradient = {}, .structure = std::move(output.structure)};
    for (const at::Tensor& tensor : output.tensors) {
      parcel.tensors.push_back(tensor.detach());
      parcel.needs_gradient.push_back(tensor.requires_grad());
      if (tensor.requires_grad()) state.roots.push_back(tensor);
    }
    require(!is_training_ || !state.roots.empty() || !stages_.module()->is_trained(stage), [&] {
      return stages_.text_of(stage) +
             " returns no tensor that requires a gradient, so its weights would get none";
    });
    messages_.send({Way::output, stage, microbatch}, parcel, /*in_slots=*/is_training_);
  }
  if (is_training_) in_flight_.emplace(std::pair{stage, microbatch}, std::move(state));
}

// Also removes roots without a gradient.
std::vector<at::Tensor> PipelineRun::take_gradients(int stage, int microbatch,
                                                    std::vector<at::Tensor>& roots) {
  if (is_last(stage)) return {at::ones_like(roots.front())};
  std::vector<at::Tensor> gradients = receive({Way::gradient, stage, microbatch}).tensors;
  check(gradients.size() == roots.size(), "a pipeline's gradients are not those of outputs");
  std::vector<at::Tensor> reached;
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (gradients[i].defined()) reached.push_back(roots[i]);
  roots = std::move(reached);
  std::erase_if(gradients, [](const at::Tensor& gradient) { return !gradient.defined(); });
  return gradients;
}

void PipelineRun::backward(int stage, int microbatch, bool with_weights) {
  const auto found = in_flight_.find({stage, microbatch});
  InFlight& state = found->second;
  std::vector<at::Tensor> gradients = take_gradients(stage, microbatch, state.roots);
  std::vector<at::Tensor> leaves = leaves_of(state.input);
  if (with_weights) {
    if (!state.roots.empty()) torch::autograd::backward(state.roots, gradients);
    const std::vector<at::Tensor> of_input = taken(leaves);
    // Frees slots before notifying others.
    in_flight_.erase(found);
    gradients.clear();
    leaves.clear();
    send_gradients(stage, microbatch, of_input);
    return;
  }
  state.split.emplace(std::exchange(state.roots, {}), gradients);
  send_gradients(stage, microbatch,
                 leaves.empty() ? std::vector<at::Tensor>() : state.split->inputs(leaves));
}

void PipelineRun::send_gradients(int stage, int microbatch,
                                 const std::vector<at::Tensor>& gradients) {
  if (stage == 0) return;
  messages_.send({Way::gradient, stage - 1, microbatch},
                 {.tensors = gradients,
                  .needs_gradient = std::vector<bool>(gradients.size()),
                  .structure = {}});
}

}  // namespace lockstep::parallel
