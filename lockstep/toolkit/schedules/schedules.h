// The schedules of Python's torch.optim.lr_scheduler and swa_utils.py, except cycles
// (cyclic_schedules.h), ReduceLROnPlateau (reduce_lr_on_plateau.h) and combinations
// (lr_scheduler.h). Options have Python's names and defaults.
//
// Errors: misuse for an option that is missing, that Python refuses, or that makes Python divide by
// zero. Misuse also, unlike Python, for step_size, T_max or total_iters below 1, and for an
// ExponentialLR's gamma of at most 0.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/toolkit/schedules/lr_scheduler.h"
#include "lockstep/toolkit/schedules/per_group.h"

namespace lockstep {

// --- Functions of the program --------------------------------------------------------------------

// A factor per step. Not saved: a resumed program passes the same function.
using LRFactor = std::function<double(std::int64_t epoch)>;

// The initial rate times a factor.
class LOCKSTEP_API LambdaLR : public LRScheduler {
 public:
  LambdaLR(torch::optim::Optimizer& optimizer, LRFactor lr_lambda);
  LambdaLR(torch::optim::Optimizer& optimizer, std::vector<LRFactor> lr_lambdas);

 private:
  std::vector<double> rates() override;

  const std::vector<LRFactor> lr_lambdas_;
};

// The last rate times a factor.
class LOCKSTEP_API MultiplicativeLR : public LRScheduler {
 public:
  MultiplicativeLR(torch::optim::Optimizer& optimizer, LRFactor lr_lambda);
  MultiplicativeLR(torch::optim::Optimizer& optimizer, std::vector<LRFactor> lr_lambdas);

 private:
  std::vector<double> rates() override;

  const std::vector<LRFactor> lr_lambdas_;
};

// --- Steps, and decay ----------------------------------------------------------------------------

struct StepLROptions {
  std::int64_t step_size = 0;
  double gamma = 0.1;
};

// Multiplies the rate by gamma every step_size steps.
class LOCKSTEP_API StepLR : public LRScheduler {
 public:
  StepLR(torch::optim::Optimizer& optimizer, const StepLROptions& options);

 private:
  std::vector<double> rates() override;
  std::vector<double> first_rates() override;
  void list(schedules::ScheduleFields& fields) override;

  StepLROptions options_;
};

struct MultiStepLROptions {
  std::vector<std::int64_t> milestones = {};  // A repeated one counts each time.
  double gamma = 0.1;
};

// Multiplies the rate by gamma in the steps of `milestones`.
class LOCKSTEP_API MultiStepLR : public LRScheduler {
 public:
  MultiStepLR(torch::optim::Optimizer& optimizer, MultiStepLROptions options);

 private:
  std::vector<double> rates() override;
  std::vector<double> first_rates() override;
  void list(schedules::ScheduleFields& fields) override;

  MultiStepLROptions options_;
};

struct ConstantLROptions {
  double factor = 1.0 / 3;  // In (0, 1].
  std::int64_t total_iters = 5;
};

// Multiplies the rate by `factor` until step total_iters.
class LOCKSTEP_API ConstantLR : public LRScheduler {
 public:
  explicit ConstantLR(torch::optim::Optimizer& optimizer, const ConstantLROptions& options = {});

 private:
  std::vector<double> rates() override;
  std::vector<double> first_rates() override;
  void list(schedules::ScheduleFields& fields) override;

  ConstantLROptions options_;
};

struct LinearLROptions {
  double start_factor = 1.0 / 3;  // In (0, 1].
  double end_factor = 1.0;        // In [0, 1].
  std::int64_t total_iters = 5;
};

// Changes the factor linearly over total_iters steps.
class LOCKSTEP_API LinearLR : public LRScheduler {
 public:
  explicit LinearLR(torch::optim::Optimizer& optimizer, const LinearLROptions& options = {});

 protected:
  void list(schedules::ScheduleFields& fields) override;

 private:
  std::vector<double> rates() override;
  std::vector<double> first_rates() override;

  LinearLROptions options_;
};

struct ExponentialLROptions {
  double gamma = 0;
};

// Multiplies the rate by gamma in each step.
class LOCKSTEP_API ExponentialLR : public LRScheduler {
 public:
  ExponentialLR(torch::optim::Optimizer& optimizer, const ExponentialLROptions& options);

 private:
  std::vector<double> rates() override;
  std::vector<double> first_rates() override;
  void list(schedules::ScheduleFields& fields) override;

  ExponentialLROptions options_;
};

struct PolynomialLROptions {
  std::int64_t total_iters = 5;
  double power = 1.0;  // At least 0.
};

// The initial rate times (1 - step / total_iters) ^ power.
class LOCKSTEP_API PolynomialLR : public LRScheduler {
 public:
  explicit PolynomialLR(torch::optim::Optimizer& optimizer,
                        const PolynomialLROptions& options = {});

 private:
  std::vector<double> rates() override;
  std::vector<double> first_rates() override;
  void list(schedules::ScheduleFields& fields) override;

  PolynomialLROptions options_;
};

// --- Cosines -------------------------------------------------------------------------------------

struct CosineAnnealingLROptions {
  std::int64_t T_max = 0;  // Steps to the lowest rate; then the rate rises.
  double eta_min = 0.0;
};

// Half a cosine from the initial rate to eta_min (Loshchilov and Hutter 2017, "SGDR").
class LOCKSTEP_API CosineAnnealingLR : public LRScheduler {
 public:
  CosineAnnealingLR(torch::optim::Optimizer& optimizer, const CosineAnnealingLROptions& options);

 private:
  std::vector<double> rates() override;
  std::vector<double> first_rates() override;
  void list(schedules::ScheduleFields& fields) override;

  CosineAnnealingLROptions options_;
};

struct CosineAnnealingWarmRestartsOptions {
  std::int64_t T_0 = 0;     // Steps to the first restart; at least 1.
  std::int64_t T_mult = 1;  // Each cycle has T_mult times the steps of the last; at least 1.
  double eta_min = 0.0;
};

// As CosineAnnealingLR, restarted after each cycle.
class LOCKSTEP_API CosineAnnealingWarmRestarts : public LRScheduler {
 public:
  CosineAnnealingWarmRestarts(torch::optim::Optimizer& optimizer,
                              const CosineAnnealingWarmRestartsOptions& options);

 private:
  std::vector<double> rates() override;
  std::vector<double> first_rates() override;
  void list(schedules::ScheduleFields& fields) override;

  CosineAnnealingWarmRestartsOptions options_;
  std::int64_t T_cur_ = -1;
  std::int64_t T_i_ = 0;
};

enum class AnnealStrategy : std::uint8_t { cos, linear };

struct SWALROptions {
  PerGroup swa_lr;
  std::int64_t anneal_epochs = 10;
  AnnealStrategy anneal_strategy = AnnealStrategy::cos;
};

// Moves the rate to swa_lr, for an average of weights.
class LOCKSTEP_API SWALR : public LRScheduler {
 public:
  SWALR(torch::optim::Optimizer& optimizer, const SWALROptions& options);

 private:
  std::vector<double> rates() override;
  std::vector<double> first_rates() override;
  void list(schedules::ScheduleFields& fields) override;
  std::vector<double> rates_at(std::int64_t step) const;
  double share_at(std::int64_t step) const;

  std::vector<double> swa_lrs_;
  std::int64_t anneal_epochs_;
  AnnealStrategy anneal_strategy_;
};

}  // namespace lockstep
