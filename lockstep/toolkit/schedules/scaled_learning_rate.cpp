// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/schedules/scaled_learning_rate.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/toolkit/schedules/param_group_values.h"
#include "lockstep/toolkit/schedules/schedule_fields.h"

namespace lockstep {
namespace {

using torch::optim::Optimizer;

double factor_of(RateRule rule, std::int64_t batch, std::int64_t base_batch) {
  const double k = static_cast<double>(batch) / static_cast<double>(base_batch);
  return rule == RateRule::sqrt ? std::sqrt(k) : k;
}

double factor_of(const ScaledLearningRateOptions& options) {
  if (options.rule == RateRule::none) return 1;
  return factor_of(options.rule, options.global_batch, options.base_batch);
}

Optimizer& scaled(Optimizer& optimizer, const ScaledLearningRateOptions& options) {
  require(options.global_batch >= 1, "ScaledLearningRate: global_batch must be at least 1");
  require(options.rule == RateRule::none || options.base_batch >= 1,
          "ScaledLearningRate: a rule needs base_batch, the global batch for which the "
          "optimizer's learning rate was found");
  require(options.warmup_steps >= 0, "ScaledLearningRate: warmup_steps must be at least 0");
  require(!schedules::has_initial_rates(optimizer),
          "ScaledLearningRate: make it before other schedules of its optimizer: their rates would "
          "not be scaled");
  std::vector<double> rates = schedules::rates_of(optimizer);
  for (double& rate : rates) rate *= factor_of(options);
  schedules::set_rates(optimizer, rates);
  return optimizer;
}

LinearLROptions warm_up(const ScaledLearningRateOptions& options) {
  const bool is_needed = options.warmup_steps > 0 && factor_of(options) > 1;
  return {.start_factor = is_needed ? 1 / factor_of(options) : 1,
          .total_iters = std::max<std::int64_t>(options.warmup_steps, 1)};
}

void warn_of(std::int64_t saved_batch, const ScaledLearningRateOptions& options) {
  const bool has_rule = options.rule != RateRule::none;
  std::ostringstream text;
  text << "ScaledLearningRate: the checkpoint's learning rate is that of a global batch of "
       << saved_batch << ", and now it is " << options.global_batch
       << ". It is unchanged, so accuracy may fall: the "
       << (options.rule == RateRule::sqrt ? "square root" : "linear") << " rule "
       << (has_rule ? "" : "(RateRule::linear) ") << "would multiply it by "
       << factor_of(options.rule, options.global_batch, saved_batch);
  log(LogLevel::warning, text.str());
}

}  // namespace

ScaledLearningRate::ScaledLearningRate(Optimizer& optimizer,
                                       const ScaledLearningRateOptions& options)
    : LinearLR(scaled(optimizer, options), warm_up(options)),
      options_(options),
      batch_of_rate_(options.global_batch),
      factor_(factor_of(options)) {}

void ScaledLearningRate::list(schedules::ScheduleFields& fields) {
  LinearLR::list(fields);
  fields.begin_own();
  fields.add_count(
      "global_batch", {.least = 1}, [this] { return batch_of_rate_; },
      [this](std::int64_t saved) {
        batch_of_rate_ = saved;
        if (saved != options_.global_batch) warn_of(saved, options_);
      });
  fields.add("batch_factor", factor_, {.least = 0, .without_least = true});
}

}  // namespace lockstep
