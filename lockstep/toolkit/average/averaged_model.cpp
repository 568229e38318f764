// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/average/averaged_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/empty_strided.h>

#include <exception>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/values.h"
#include "lockstep/parallel/replicate/held_tensors.h"
#include "lockstep/tensor/differences.h"
#include "lockstep/tensor/distinct_tensors.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

const torch::nn::Module& own_parameters_of(const torch::nn::Module& module) {
  require_values(named_tensors(module), "AveragedModel");
  for (const auto& [name, parameter] : named_parameters(module))
    require(!lies_in_shared_block(parameter), [&, &name = name] {
      return "AveragedModel: parameter " + name +
             " is shared by all ranks, which would each average all of it: pass the "
             "DistributedDataParallel instead of its module";
    });
  return module;
}

bool is_averaged(const at::Tensor& tensor) {
  return tensor.is_floating_point() || tensor.is_complex();
}

// swa_utils.py computes 1 / (n + 1) in a tensor, in single precision.
double weight_of(const AveragingRule& rule, std::int64_t updates) {
  if (rule.decay) return 1 - *rule.decay;
  return static_cast<double>(1.0F / static_cast<float>(updates + 1));
}

void average_integers(const at::Tensor& average, const at::Tensor& current,
                      const AveragingRule& rule) {
  if (rule.decay)
    average.copy_(average * *rule.decay + current * (1 - *rule.decay));
  else
    average.copy_(current);
}

void swap(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor before = a.clone();
  a.copy_(b);
  b.copy_(before);
}

std::exception_ptr exception_of(const std::function<void()>& action) {
  try {
    action();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

// Collective. The exception to throw if any rank has one. `own` may be null.
std::exception_ptr agreed(const std::exception_ptr& own, const ProcessGroup& ranks) {
  const std::string text = own ? "with_averages() has ended with " + exception_text(own) : "";
  const auto texts = all_gather_bytes(text, ranks, {.label = "the end of with_averages()"});
  if (own) return own;
  for (std::size_t rank = 0; rank < texts.size(); ++rank)
    if (!texts[rank].empty())
      return std::make_exception_ptr(
          Error(Fault::aborted, "rank " + std::to_string(rank) + ": " + texts[rank]));
  return nullptr;
}

// Whether a saved tensor, counted row by row, can be read into `value`.
bool is_in_rows(const StateTensor& described, const at::Tensor& value) {
  return described.strides.empty() && has_plain_values(value);
}

at::Tensor held_of(const StateTensor& described, const at::Tensor& local) {
  if (described.strides.empty()) return local;
  const at::Tensor laid_out =
      at::empty_strided(described.shape, described.strides, local.options());
  laid_out.copy_(local.reshape(described.shape));
  return laid_out.as_strided({local.numel()}, {1})
      .slice(0, described.begin, described.begin + described.data.numel());
}

}  // namespace

AveragingRule ema(double decay) {
  require(decay >= 0 && decay <= 1, "ema: the decay is not in the range from 0 to 1");
  return {.decay = decay};
}

AveragingRule swa() { return {}; }

AveragedModel::AveragedModel(DataParallelBase& ddp, const AveragingRule& rule,
                             const AveragedModelOptions& options)
    : AveragedModel(ddp.replica(), held_tensors_of(ddp), rule, options) {}

AveragedModel::AveragedModel(const torch::nn::Module& module, const AveragingRule& rule,
                             const AveragedModelOptions& options)
    : AveragedModel(module, whole_tensors_of(own_parameters_of(module)), rule, options) {}

AveragedModel::AveragedModel(const torch::nn::Module& module, std::unique_ptr<HeldTensors> held,
                             const AveragingRule& rule, const AveragedModelOptions& options)
    : module_(module), held_(std::move(held)), rule_(rule), options_(options) {
  if (rule.decay) ema(*rule.decay);
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : held_->tensors())
    parameters_.push_back({name, tensor.data.detach().clone(), std::move(tensor)});
  for (const auto& [name, buffer] : distinct(named_buffers(module))) {
    StateTensor current{.data = buffer, .shape = buffer.sizes().vec(), .of_rank_0 = true};
    buffers_.push_back({name, buffer.detach().clone(), std::move(current)});
  }
}

AveragedModel::~AveragedModel() = default;

// --- Averaging -----------------------------------------------------------------------------------

void AveragedModel::require_own_weights(const char* call) const {
  require(!is_swapped_in_, [&] {
    return std::string("AveragedModel: ") + call +
           " was called within with_averages(), where the model has the averages";
  });
}

void AveragedModel::average(const std::vector<Average>& tensors) const {
  std::vector<at::Tensor> averages, currents;
  for (const Average& tensor : tensors) {
    if (updates_ == 0) {
      tensor.value.copy_(tensor.current.data);
    } else if (!is_averaged(tensor.value)) {
      average_integers(tensor.value, tensor.current.data, rule_);
    } else {
      averages.push_back(tensor.value);
      currents.push_back(tensor.current.data);
    }
  }
  if (!averages.empty()) at::_foreach_lerp_(averages, currents, weight_of(rule_, updates_));
}

void AveragedModel::update() {
  require_own_weights("update()");
  const at::NoGradGuard no_grad;
  average(parameters_);
  if (options_.use_buffers)
    average(buffers_);
  else
    for (const Average& buffer : buffers_) buffer.value.copy_(buffer.current.data);
  ++updates_;
}

// --- Use -----------------------------------------------------------------------------------------

void AveragedModel::swap_held() {
  const at::NoGradGuard no_grad;
  for (const auto* const tensors : {&parameters_, &buffers_})
    for (const Average& tensor : *tensors) swap(tensor.value, tensor.current.data);
  is_swapped_in_ = !is_swapped_in_;
}

void AveragedModel::exchange() {
  held_->write([this] { swap_held(); });
}

void AveragedModel::with_averages(const std::function<void()>& use) {
  require_own_weights("with_averages()");
  held_->require_intact();
  std::exception_ptr error;
  try {
    exchange();
    error = exception_of([&] {
      use();
      held_->require_intact();
    });
    if (const ProcessGroup* const ranks = held_->sharing_ranks()) error = agreed(error, *ranks);
    exchange();
  } catch (const Error&) {  // The group has broken.
    if (is_swapped_in_) held_->write_alone([this] { swap_held(); });
    if (!error) throw;
  }
  if (error) std::rethrow_exception(error);
}

void AveragedModel::apply() {
  require_own_weights("apply()");
  held_->require_intact();
  const at::NoGradGuard no_grad;
  held_->write([this] {
    for (const Average& tensor : parameters_) tensor.current.data.copy_(tensor.value);
  });
  for (const Average& buffer : buffers_) buffer.current.data.copy_(buffer.value);
}

// --- State ---------------------------------------------------------------------------------------

StateDict AveragedModel::state_dict() {
  require_own_weights("state_dict()");
  StateDict state;
  state.values.emplace("updates", updates_);
  for (const auto* const tensors : {&parameters_, &buffers_})
    for (const Average& tensor : *tensors)
      state.tensors.emplace(tensor.name, tensor.current).first->second.data = tensor.value;
  return state;
}

StateRequest AveragedModel::wanted(const StateDict& saved) {
  require_own_weights("wanted()");
  Mismatches mismatches;
  std::set<std::string> known;
  for (const auto& [name, tensor] : distinct(named_tensors(module_))) {
    known.insert(name);
    if (!saved.tensors.contains(name)) mismatches.add("the average of " + name + " was not saved");
  }
  for (const auto& [name, tensor] : saved.tensors)
    if (!known.contains(name))
      mismatches.add("the average of " + name + " was saved and is unknown");
  StateRequest request;
  for (const auto* const tensors : {&parameters_, &buffers_})
    for (const auto& [name, value, described] : *tensors) {
      if (!saved.tensors.contains(name)) continue;
      mismatches.find(saved, name, value.scalar_type(), described.shape);
      std::int64_t elements = described.strides.empty() ? value.numel() : 1;
      if (!described.strides.empty())
        for (const std::int64_t size : described.shape) elements *= size;
      const std::int64_t begin = described.strides.empty() ? described.begin : 0;
      request.emplace(name,
                      ElementRange{.begin = begin,
                                   .end = begin + elements,
                                   .into = is_in_rows(described, value) ? value : at::Tensor{},
                                   .boxes = described.boxes});
    }
  mismatches.require_none("the saved averages are not of this model");
  require(value_of<std::int64_t>(saved, "updates") >= 0,
          "AveragedModel: the saved number of updates is negative");
  return request;
}

void AveragedModel::load_state_dict(StateDict state) {
  require_own_weights("load_state_dict()");
  const at::NoGradGuard no_grad;
  for (const auto* const tensors : {&parameters_, &buffers_})
    for (const auto& [name, value, described] : *tensors) {
      const at::Tensor& read = state.tensors.at(name).data;
      if (!is_in_rows(described, value)) value.copy_(held_of(described, read).view_as(value));
    }
  updates_ = value_of<std::int64_t>(state, "updates");
}

}  // namespace lockstep
