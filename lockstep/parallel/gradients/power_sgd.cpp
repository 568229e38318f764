// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/parallel/gradients/low_rank_bucket.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/cut_tensors.h"
#include "lockstep/tensor/differences.h"

namespace lockstep {
namespace parallel {
namespace {

// PyTorch's seeds: numpy.random.RandomState(seed).randint(1_000_000_000).
class Seeds {
 public:
  explicit Seeds(std::uint32_t seed) : seed_(seed), engine_(seed) {}

  std::uint32_t next() {
    constexpr std::uint32_t largest = 999'999'999;
    constexpr std::uint32_t mask = (std::uint32_t{1} << 30) - 1;
    for (;;) {
      ++drawn_;
      const auto value = static_cast<std::uint32_t>(engine_()) & mask;
      if (value <= largest) return value;
    }
  }

  std::int64_t drawn() const { return drawn_; }
  void go_to(std::int64_t drawn) {
    engine_.seed(seed_);
    engine_.discard(static_cast<unsigned long long>(drawn));
    drawn_ = drawn;
  }

 private:
  const std::uint32_t seed_;
  std::mt19937 engine_;
  std::int64_t drawn_ = 0;
};

std::string text_of(double number) {
  std::ostringstream text;
  text.precision(17);
  text << number;
  return text.str();
}

void require_same(const PowerSGDOptions& options, const ProcessGroup& group) {
  const Facts facts = {
      {"matrix_approximation_rank", std::to_string(options.matrix_approximation_rank)},
      {"start_step", std::to_string(options.start_step)},
      {"min_compression_rate", text_of(options.min_compression_rate)},
      {"use_error_feedback", std::to_string(options.use_error_feedback)},
      {"warm_start", std::to_string(options.warm_start)},
      {"orthogonalization_epsilon", text_of(options.orthogonalization_epsilon)},
      {"random_seed", std::to_string(options.random_seed)},
      {"batch_tensors_with_same_shape", std::to_string(options.batch_tensors_with_same_shape)}};
  const auto differing = differing_values(gather(facts, group, "PowerSGD"));
  if (!differing.empty())
    throw Error(Fault::mismatch, "PowerSGD: the options of ranks differ: " + differing.front());
}

void require_valid(const PowerSGDOptions& options) {
  require(options.matrix_approximation_rank >= 1,
          "PowerSGD: matrix_approximation_rank must be at least 1");
  require(options.start_step >= 0, "PowerSGD: start_step is negative");
  require(options.start_step >= 2 || !(options.use_error_feedback || options.warm_start),
          "PowerSGD: with error feedback or warm start, start_step must be at least 2: buckets are "
          "rebuilt after the first pass");
  require(std::isfinite(options.min_compression_rate) && options.min_compression_rate > 0,
          "PowerSGD: min_compression_rate must be positive");
  require(
      std::isfinite(options.orthogonalization_epsilon) && options.orthogonalization_epsilon >= 0,
      "PowerSGD: orthogonalization_epsilon is negative or not finite");
}

// Errors are saved by rank in the group: all must have equal parameters.
void require_whole(const GradientBucket& bucket) {
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i)
    if (!part_text(bucket.parameters[i]).empty())
      throw Error(Fault::unsupported,
                  "PowerSGD: parameter " + bucket.gradients[i].first + " is cut over ranks");
}

constexpr std::string_view q_prefix = "q.";

std::string error_prefix(std::int64_t rank) {
  std::string prefix = "rank.";
  return prefix.append(std::to_string(rank)).append(".error.");
}

}  // namespace

class PowerSGDHook {
 public:
  PowerSGDHook(const ProcessGroup& group, const PowerSGDOptions& options)
      : group_(group), options_(options), seeds_(options.random_seed) {}

  void average(GradientBucket& bucket);
  double compression_rate() const;

  StateDict state() const;
  StateRequest wanted(const StateDict& saved) const;
  void load(const StateDict& state);

 private:
  LowRankBucket& bucket_for(const GradientBucket& bucket);
  void make(const GradientBucket& bucket);
  void end_pass();
  LowRankMemories memories() const;
  std::vector<std::string> own_prefixes(std::int64_t saved_ranks) const;

  const ProcessGroup group_;
  const PowerSGDOptions options_;
  std::int64_t step_ = 0;
  Seeds seeds_;
  std::map<std::size_t, LowRankBucket> buckets_;  // By index.
  LowRankMemories waiting_;                       // For gradients without a bucket.
};

void PowerSGDHook::average(GradientBucket& bucket) {
  require(bucket.group.size() == group_.size(),
          "PowerSGD: DistributedDataParallel has other ranks than the group of PowerSGD");
  if (buckets_.find(bucket.index) == buckets_.end()) require_whole(bucket);
  if (step_ < options_.start_step)
    all_reduce(bucket.buffer, bucket.group, ReduceOp::average, {.label = bucket.label});
  else if (LowRankBucket& low_rank = bucket_for(bucket); !low_rank.average(bucket))
    low_rank.draw_lost_rows(seeds_.next());
  if (bucket.index + 1 == bucket.count) end_pass();
}

LowRankBucket& PowerSGDHook::bucket_for(const GradientBucket& bucket) {
  const auto found = buckets_.find(bucket.index);
  if (found == buckets_.end()) {
    make(bucket);
  } else if (!found->second.fits(bucket)) {  // After resumption, buckets are rebuilt once.
    for (auto old = found; old != buckets_.end(); ++old) waiting_.merge(old->second.memories());
    buckets_.erase(found, buckets_.end());
    make(bucket);
  } else if (!options_.warm_start) {
    found->second.draw(seeds_.next());
  }
  return buckets_.at(bucket.index);
}

void PowerSGDHook::make(const GradientBucket& bucket) {
  LowRankBucket& made = buckets_.try_emplace(bucket.index, bucket, options_).first->second;
  // As in PyTorch, the first step draws per bucket.
  if (step_ == options_.start_step || !made.has_qs_in(waiting_)) made.draw(seeds_.next());
  made.take_from(waiting_);
}

void PowerSGDHook::end_pass() {
  if (++step_ == options_.start_step) {
    log(LogLevel::info, "PowerSGD: compression begins with the next pass");
  } else if (step_ > options_.start_step && !waiting_.empty()) {
    throw Error(Fault::misuse, "PowerSGD: the loaded state has gradient " +
                                   waiting_.begin()->first +
                                   ", which no bucket has or which is compressed no longer");
  }
}

double PowerSGDHook::compression_rate() const {
  std::int64_t elements = 0;
  std::int64_t sent = 0;
  for (const auto& [index, bucket] : buckets_) {
    elements += bucket.elements();
    sent += bucket.sent_elements();
  }
  return sent > 0 ? static_cast<double>(elements) / static_cast<double>(sent) : 1;
}

// Memories without a bucket are unchanged since the load.
LowRankMemories PowerSGDHook::memories() const {
  LowRankMemories all = waiting_;
  for (const auto& [index, bucket] : buckets_) all.merge(bucket.memories());
  return all;
}

StateDict PowerSGDHook::state() const {
  StateDict state;
  state.values["step"] = step_;
  state.values["matrix_approximation_rank"] = options_.matrix_approximation_rank;
  state.values["use_error_feedback"] = options_.use_error_feedback;
  state.values["warm_start"] = options_.warm_start;
  state.values["seeds_drawn"] = seeds_.drawn();
  state.values["world_size"] = std::int64_t{group_.size()};
  const std::string prefix = error_prefix(group_.rank());
  for (const auto& [name, memory] : memories()) {
    if (memory.error.defined()) state.tensors.emplace(prefix + name, whole(memory.error));
    if (memory.q.defined()) state.tensors.emplace(std::string(q_prefix) + name, whole(memory.q));
  }
  return state;
}

StateRequest PowerSGDHook::wanted(const StateDict& saved) const {
  const auto require_saved = [&](const char* option, auto value) {
    const auto was = value_of<decltype(value)>(saved, option);
    require(was == value, [&] {
      std::string text = "PowerSGD: the state was saved with ";
      return text.append(option)
          .append(" ")
          .append(std::to_string(was))
          .append(", not ")
          .append(std::to_string(value));
    });
  };
  require_saved("matrix_approximation_rank", options_.matrix_approximation_rank);
  require_saved("use_error_feedback", options_.use_error_feedback);
  require_saved("warm_start", options_.warm_start);
  const std::vector<std::string> own = own_prefixes(value_of<std::int64_t>(saved, "world_size"));
  StateRequest request = everything(saved);
  std::erase_if(request, [&](const auto& entry) {
    const auto has = [&](const std::string& prefix) { return entry.first.starts_with(prefix); };
    return !has(std::string(q_prefix)) && std::none_of(own.begin(), own.end(), has);
  });
  return request;
}

// Saved ranks whose errors this rank continues.
std::vector<std::string> PowerSGDHook::own_prefixes(std::int64_t saved_ranks) const {
  std::vector<std::string> prefixes;
  for (std::int64_t rank = group_.rank(); rank < saved_ranks; rank += group_.size())
    prefixes.push_back(error_prefix(rank));
  return prefixes;
}

// Scales sums to keep the mean.
void PowerSGDHook::load(const StateDict& state) {
  const auto saved_ranks = value_of<std::int64_t>(state, "world_size");
  const double scale = static_cast<double>(group_.size()) / static_cast<double>(saved_ranks);
  LowRankMemories loaded;
  std::map<std::string, at::Tensor> sums;  // In double precision.
  for (const auto& [name, tensor] : state.tensors)
    if (name.starts_with(q_prefix)) loaded[name.substr(q_prefix.size())].q = tensor.data;
  for (const std::string& prefix : own_prefixes(saved_ranks))
    for (const auto& [name, tensor] : state.tensors) {
      if (!name.starts_with(prefix)) continue;
      at::Tensor& sum = sums[name.substr(prefix.size())];
      sum = sum.defined() ? sum.add(tensor.data) : tensor.data.to(at::kDouble);
      loaded[name.substr(prefix.size())].error = sum.mul(scale).to(tensor.data.scalar_type());
    }
  step_ = value_of<std::int64_t>(state, "step");
  seeds_.go_to(value_of<std::int64_t>(state, "seeds_drawn"));
  buckets_.clear();
  waiting_ = std::move(loaded);
}

}  // namespace parallel

PowerSGD::PowerSGD(const ProcessGroup& group, const PowerSGDOptions& options)
    : hook_(std::make_shared<parallel::PowerSGDHook>(group, options)) {
  parallel::require_valid(options);
  parallel::require_same(options, group);
}

PowerSGD::~PowerSGD() = default;

CommunicationHook PowerSGD::hook() const {
  return [hook = hook_](GradientBucket& bucket) { hook->average(bucket); };
}

double PowerSGD::compression_rate() const { return hook_->compression_rate(); }

StateDict PowerSGD::state_dict() { return hook_->state(); }

StateRequest PowerSGD::wanted(const StateDict& saved) { return hook_->wanted(saved); }

void PowerSGD::load_state_dict(StateDict state) { hook_->load(state); }

}  // namespace lockstep
