// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/deterministic/deterministic_pass.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/comm/values.h"
#include "lockstep/parallel/deterministic/fixed_state.h"
#include "lockstep/parallel/gradients/backward_pass.h"
#include "lockstep/parallel/gradients/reducer.h"
#include "lockstep/parallel/replicate/replicas.h"
#include "lockstep/tensor/vector_math.h"

namespace lockstep::parallel {
namespace {

// While it exists, backward() leaves gradients to DeterministicPass.
class Alone {
 public:
  explicit Alone(Reducer& reducer) : reducer_(reducer) { reducer_.prepare(/*synchronize=*/false); }
  ~Alone() { reducer_.prepare(/*synchronize=*/true); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

 private:
  Reducer& reducer_;
};

void require_threads(std::int64_t threads, int rank, int promised) {
  require(threads == promised, [&] {
    return "DeterministicDataParallel: rank " + std::to_string(rank) + " computes with " +
           std::to_string(threads) + " intra-op threads, not with " + std::to_string(promised) +
           ", and results depend on it: call torch::set_num_threads(" + std::to_string(promised) +
           ") at the beginning on every rank, or set the option threads";
  });
}

std::int64_t first_changed(const std::vector<std::uint64_t>& before,
                           const std::vector<std::uint64_t>& after) {
  const auto [at, ignored] =
      std::mismatch(before.begin(), before.end(), after.begin(), after.end());
  return at == before.end() ? -1 : at - before.begin();
}

}  // namespace

DeterministicOptions DeterministicPass::checked(const DeterministicOptions& options,
                                                const ProcessGroup& group) {
  require_same_lines("microbatches " + std::to_string(options.microbatches) + "\nthreads " +
                         std::to_string(options.threads) + "\nseed " + std::to_string(options.seed),
                     "the options of DeterministicDataParallel", group);
  constexpr int most = 1 << 16;
  require(options.microbatches > 0 && options.microbatches <= most,
          "DeterministicDataParallel: the number of microbatches is not in the range from 1 to "
          "65536");
  require(options.threads > 0, "DeterministicDataParallel: `threads` is not positive");
  require(options.microbatches % group.size() == 0, [&] {
    return "DeterministicDataParallel: " + std::to_string(options.microbatches) +
           " microbatches cannot be divided evenly among " + std::to_string(group.size()) +
           " ranks";
  });
  require(options.threads == 1 || at::globalContext().deterministicAlgorithms(),
          "DeterministicDataParallel: with several intra-op threads some of LibTorch's kernels add "
          "in any order unless at::globalContext().setDeterministicAlgorithms(true, false) has "
          "been called");
  const auto threads = all_gather_value(at::get_num_threads(), group, {.label = "threads"});
  for (int rank = 0; rank < group.size(); ++rank)
    require_threads(threads[static_cast<std::size_t>(rank)], rank, options.threads);
  return options;
}

DeterministicPass::DeterministicPass(const torch::nn::Module& module, Reducer& reducer,
                                     const ProcessGroup& group, const DeterministicOptions& options)
    : module_(module),
      reducer_(reducer),
      group_(group),
      options_(options),
      tree_(options.microbatches, group.size()),
      steps_(tree_.steps(group.rank())),
      sums_(reducer.parameters(), tree_, group) {
  settle_vector_math();
}

double DeterministicPass::run(std::int64_t step, const MicrobatchLoss& loss_of,
                              const std::string& change) {
  const Alone alone(reducer_);
  try {
    return compute(step, loss_of, change);
  } catch (...) {
    drop_gradients();
    throw;
  }
}

std::vector<DeterministicPass::Outcome> DeterministicPass::compute_microbatches(
    std::int64_t step, const MicrobatchLoss& loss_of, const std::string& change) {
  const Clock::time_point begin = Clock::now();
  try {
    require_fixed_statistics(module_);
    require(change.empty(), change);
    uses_.assign(reducer_.parameters().size(), ParameterUse::unused);
    report_ = {};
    MicrobatchRandom random;
    std::vector<Outcome> outcomes(steps_.size());
    for (const MicrobatchTree::Step& next : steps_) {
      drop_gradients();
      random.begin(options_.seed, step, next.microbatch);
      outcomes[static_cast<std::size_t>(next.microbatch / group_.size())] =
          compute_microbatch(next, loss_of);
    }
    longest_ = std::max<std::chrono::nanoseconds>(longest_, Clock::now() - begin);
    return outcomes;
  } catch (...) {
    const auto take_part = [this](std::string_view text) {
      sum_over_microbatches(std::vector<Outcome>(steps_.size()));
      reducer_.agreement().exchange(report_, uses_, group_, text);
      return true;
    };
    end_with_the_others(std::current_exception(), group_, group_, longest_, take_part);
    throw;
  }
}

DeterministicPass::Outcome DeterministicPass::compute_microbatch(const MicrobatchTree::Step& step,
                                                                 const MicrobatchLoss& loss_of) {
  reducer_.forget_window();
  const at::Tensor loss =
      loss_of({.index = step.microbatch, .count = options_.microbatches, .ranks = group_.size()});
  require(loss.defined() && loss.numel() == 1,
          "train_microbatches: the loss of a microbatch must be a single number");
  loss.backward();
  take_gradients(step);
  return {.loss = loss.item<double>(), .samples = reducer_.samples()};
}

// Per microbatch: Errors for left-out gradients must not depend on the rank's share.
void DeterministicPass::take_gradients(const MicrobatchTree::Step& step) {
  const at::NoGradGuard no_grad;
  const NamedTensors& parameters = reducer_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, parameter] = parameters[i];
    const at::Tensor& gradient = parameter.grad();
    if (gradient.defined() && gradient.layout() != at::kStrided)
      throw Error(Fault::unsupported, "the gradient of parameter " + name + " is sparse");
    if (!sums_.take(step, i, gradient) && report_.non_finite == PassReport::none)
      report_.non_finite = static_cast<std::int64_t>(i);
    if (!gradient.defined() && parameter.requires_grad() && !options_.find_unused_parameters)
      uses_[i] = ParameterUse::missing;
    if (gradient.defined() && uses_[i] == ParameterUse::unused) uses_[i] = ParameterUse::used;
  }
  sums_.merge(step);
}

void DeterministicPass::drop_gradients() const {
  for (const auto& [name, parameter] : reducer_.parameters()) parameter.mutable_grad().reset();
}

double DeterministicPass::compute(std::int64_t step, const MicrobatchLoss& loss_of,
                                  const std::string& change) {
  const NamedTensors watched = named_tensors(module_);
  const auto before = fingerprints_of(module_);
  const auto own = compute_microbatches(step, loss_of, change);
  const std::int64_t changed = first_changed(before, fingerprints_of(module_));
  drop_gradients();

  const Outcome sum = sum_over_microbatches(own);
  report_.samples = group_.rank() == 0 ? sum.samples : 0;  // Includes all ranks.
  PassAgreement& agreement = reducer_.agreement();
  const PassReports reports = agreement.exchange(report_, uses_, group_);
  const bool accepted = agreement.accepts(reports, reducer_.parameters(), group_);
  require_agreement({.step = step, .threads = at::get_num_threads(), .changed = changed}, watched);
  const double count =
      options_.mean == GradientMean::over_samples ? sum.samples : options_.microbatches;
  if (accepted) finish(reports, count);
  return sum.loss / count;
}

// In microbatch order: equal bits on any number of ranks.
DeterministicPass::Outcome DeterministicPass::sum_over_microbatches(
    const std::vector<Outcome>& own) const {
  const std::size_t bytes = own.size() * sizeof(Outcome);
  std::vector<Outcome> all(own.size() * static_cast<std::size_t>(group_.size()));
  group_.all_gather(
      {.data = const_cast<Outcome*>(own.data()), .count = bytes, .dtype = DType::uint8},
      {.data = all.data(), .count = all.size() * sizeof(Outcome), .dtype = DType::uint8}, {},
      {.label = "losses of microbatches"});
  Outcome sum;
  for (std::size_t microbatch = 0; microbatch < all.size(); ++microbatch) {
    const auto ranks = static_cast<std::size_t>(group_.size());
    const Outcome& outcome = all[microbatch % ranks * own.size() + microbatch / ranks];
    sum.loss += outcome.loss;
    sum.samples += outcome.samples;
  }
  return sum;
}

void DeterministicPass::require_agreement(const State& state, const NamedTensors& watched) const {
  const auto states = all_gather_value(state, group_, {.label = "train_microbatches"});
  for (int rank = 0; rank < group_.size(); ++rank) {
    const State& theirs = states[static_cast<std::size_t>(rank)];
    if (theirs.step != states[0].step)
      throw Error(Fault::mismatch, "train_microbatches: rank 0 is in step " +
                                       std::to_string(states[0].step) + " and rank " +
                                       std::to_string(rank) + " in step " +
                                       std::to_string(theirs.step));
    require_threads(theirs.threads, rank, options_.threads);
    if (theirs.changed >= 0)
      throw Error(Fault::unsupported, "train_microbatches: on rank " + std::to_string(rank) +
                                          " a microbatch has changed " +
                                          watched[static_cast<std::size_t>(theirs.changed)].first +
                                          ", which would depend on the number of ranks");
  }
}

void DeterministicPass::finish(const PassReports& reports, double count) {
  const at::NoGradGuard no_grad;
  sums_.finish(1 / count);
  const NamedTensors& parameters = reducer_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (reports.used_by_any(i)) parameters[i].second.mutable_grad() = sums_.result(i);
  count_step(group_);
}

}  // namespace lockstep::parallel
