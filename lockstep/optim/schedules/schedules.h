// The schedules of Python's torch.optim.lr_scheduler and swa_utils.py, except those that are made
// of others (lr_scheduler.h).
//
// Options have Python's names and defaults; those without a default must be given. A list has one
// number for each param group, as in `.max_lr = {0.1, 0.2}`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/optim/schedules/lr_scheduler.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

// One number for all param groups, or one for each.
class LOCKSTEP_API PerGroup {
 public:
  PerGroup(double number) : numbers_(1, number), is_list_(false) {}
  PerGroup(std::initializer_list<double> numbers) : PerGroup(std::vector(numbers)) {}
  PerGroup(std::vector<double> numbers) : numbers_(std::move(numbers)), is_list_(true) {}

  bool is_list() const { return is_list_; }

  // One for each param group of `optimizer`. Errors: misuse, naming the option, for a list of
  // another length.
  std::vector<double> of(const torch::optim::Optimizer& optimizer, const char* option) const;

 private:
  std::vector<double> numbers_;
  bool is_list_;
};

// --- Functions of the program --------------------------------------------------------------------

// A factor for each step. As in Python, functions are not saved: a resumed program gives the same.
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
  std::int64_t step_size = 0;  // At least 1.
  double gamma = 0.1;
};

// Multiplies the rate by gamma in every step_size-th step.
class LOCKSTEP_API StepLR : public LRScheduler {
 public:
  StepLR(torch::optim::Optimizer& optimizer, const StepLROptions& options);

 private:
  std::vector<double> rates() override;
  std::vector<double> first_rates() override;
  void list(optim::ScheduleFields& fields) override;

  StepLROptions options_;
};

struct MultiStepLROptions {
  std::vector<std::int64_t> milestones = {};  // A repeated one counts as often as it is there.
  double gamma = 0.1;
};

// Multiplies the rate by gamma in the steps of `milestones`.
class LOCKSTEP_API MultiStepLR : public LRScheduler {
 public:
  MultiStepLR(torch::optim::Optimizer& optimizer, MultiStepLROptions options);

 private:
  std::vector<double> rates() override;
  std::vector<double> first_rates() override;
  void list(optim::ScheduleFields& fields) override;

  MultiStepLROptions options_;
};

struct ConstantLROptions {
  double factor = 1.0 / 3;  // In (0, 1]. Python accepts 0, and divides by it at the end.
  std::int64_t total_iters = 5;
};

// Multiplies the rate by `factor`, until step total_iters.
class LOCKSTEP_API ConstantLR : public LRScheduler {
 public:
  explicit ConstantLR(torch::optim::Optimizer& optimizer, const ConstantLROptions& options = {});

 private:
  std::vector<double> rates() override;
  std::vector<double> first_rates() override;
  void list(optim::ScheduleFields& fields) override;

  ConstantLROptions options_;
};

struct LinearLROptions {
  double start_factor = 1.0 / 3;  // In (0, 1].
  double end_factor = 1.0;        // In [0, 1].
  std::int64_t total_iters = 5;
};

// Changes the factor of the rate evenly over total_iters steps.
class LOCKSTEP_API LinearLR : public LRScheduler {
 public:
  explicit LinearLR(torch::optim::Optimizer& optimizer, const LinearLROptions& options = {});

 protected:
  void list(optim::ScheduleFields& fields) override;

 private:
  std::vector<double> rates() override;
  std::vector<double> first_rates() override;

  LinearLROptions options_;
};

struct ExponentialLROptions {
  double gamma = 0;  // Greater than 0.
};

// Multiplies the rate by gamma in each step.
class LOCKSTEP_API ExponentialLR : public LRScheduler {
 public:
  ExponentialLR(torch::optim::Optimizer& optimizer, const ExponentialLROptions& options);

 private:
  std::vector<double> rates() override;
  std::vector<double> first_rates() override;
  void list(optim::ScheduleFields& fields) override;

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
  void list(optim::ScheduleFields& fields) override;

  PolynomialLROptions options_;
};

// --- Cosines -------------------------------------------------------------------------------------

struct CosineAnnealingLROptions {
  std::int64_t T_max = 0;  // Steps to the lowest rate; at least 1. The rate rises again after it.
  double eta_min = 0.0;    // The lowest rate.
};

// Half a cosine from the initial rate to eta_min (Loshchilov and Hutter 2017, "SGDR").
class LOCKSTEP_API CosineAnnealingLR : public LRScheduler {
 public:
  CosineAnnealingLR(torch::optim::Optimizer& optimizer, const CosineAnnealingLROptions& options);

 private:
  std::vector<double> rates() override;
  std::vector<double> first_rates() override;
  void list(optim::ScheduleFields& fields) override;

  CosineAnnealingLROptions options_;
};

struct CosineAnnealingWarmRestartsOptions {
  std::int64_t T_0 = 0;     // Steps to the first restart; at least 1.
  std::int64_t T_mult = 1;  // Factor of the steps between two restarts.
  double eta_min = 0.0;     // The lowest rate.
};

// The same, begun again after T_0 steps, then after T_mult times as many, and so on.
class LOCKSTEP_API CosineAnnealingWarmRestarts : public LRScheduler {
 public:
  CosineAnnealingWarmRestarts(torch::optim::Optimizer& optimizer,
                              const CosineAnnealingWarmRestartsOptions& options);

 private:
  std::vector<double> rates() override;
  std::vector<double> first_rates() override;
  void list(optim::ScheduleFields& fields) override;

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
  void list(optim::ScheduleFields& fields) override;
  std::vector<double> rates_at(std::int64_t step) const;
  double share_at(std::int64_t step) const;

  std::vector<double> swa_lrs_;
  std::int64_t anneal_epochs_;
  AnnealStrategy anneal_strategy_;
};

// --- Cycles --------------------------------------------------------------------------------------

// Momenta of the param groups: their option `momentum`, or the first of `betas`.
struct MomentumRange {
  std::vector<double> base = {};  // At the highest rate.
  std::vector<double> max = {};   // At the lowest rate.
};

enum class CyclicMode : std::uint8_t { triangular, triangular2, exp_range };
enum class CyclicScale : std::uint8_t { cycle, iterations };

struct CyclicLROptions {
  PerGroup base_lr;
  PerGroup max_lr;
  std::int64_t step_size_up = 2000;                 // At least 1.
  std::optional<std::int64_t> step_size_down = {};  // As step_size_up if not given.
  CyclicMode mode = CyclicMode::triangular;         // How the height of cycles changes.
  double gamma = 1.0;                               // For exp_range.
  std::function<double(double)> scale_fn = {};      // Instead of `mode`. It is not saved.
  CyclicScale scale_mode = CyclicScale::cycle;      // The argument of scale_fn.
  bool cycle_momentum = true;                       // Between max_momentum and base_momentum.
  PerGroup base_momentum = 0.8;
  PerGroup max_momentum = 0.9;
};

// Moves the rate between base_lr and max_lr, and the momentum the other way.
// Errors: in addition, misuse for cycle_momentum with an optimizer that has neither.
class LOCKSTEP_API CyclicLR : public LRScheduler {
 public:
  CyclicLR(torch::optim::Optimizer& optimizer, const CyclicLROptions& options);

 private:
  std::vector<double> rates() override;
  void list(optim::ScheduleFields& fields) override;
  double height(double cycle) const;

  std::vector<double> max_lrs_;
  double total_size_;
  double step_ratio_;
  CyclicMode mode_;
  double gamma_;
  const std::function<double(double)> scale_fn_;
  CyclicScale scale_mode_;
  const bool cycle_momentum_;
  MomentumRange momentum_;
};

struct OneCycleLROptions {
  PerGroup max_lr;
  std::int64_t total_steps = 0;  // Or both of the next two.
  std::int64_t epochs = 0;
  std::int64_t steps_per_epoch = 0;
  double pct_start = 0.3;  // Share of the steps in which the rate rises.
  AnnealStrategy anneal_strategy = AnnealStrategy::cos;
  bool cycle_momentum = true;  // Between max_momentum and base_momentum.
  PerGroup base_momentum = 0.85;
  PerGroup max_momentum = 0.95;
  double div_factor = 25.0;       // max_lr over the initial rate.
  double final_div_factor = 1e4;  // The initial rate over the last one.
  bool three_phase = false;       // Falls to the initial rate before it falls to the last one.
};

// Raises the rate to max_lr and lowers it again, once.
// Errors: in addition, misuse for cycle_momentum with an optimizer that has neither, and in a step
// beyond total_steps.
class LOCKSTEP_API OneCycleLR : public LRScheduler {
 public:
  OneCycleLR(torch::optim::Optimizer& optimizer, const OneCycleLROptions& options);

 private:
  std::vector<double> rates() override;
  void list(optim::ScheduleFields& fields) override;
  double annealed(double from, double to, double share) const;

  std::int64_t total_steps_;
  std::vector<double> end_steps_;  // Of two or three phases.
  AnnealStrategy anneal_strategy_;
  const bool cycle_momentum_;
  std::array<std::vector<double>, 3> corners_;  // Initial, highest and last rates.
  MomentumRange momentum_;
};

// --- Metrics -------------------------------------------------------------------------------------

enum class PlateauMode : std::uint8_t { min, max };
enum class ThresholdMode : std::uint8_t { rel, abs };

struct ReduceLROnPlateauOptions {
  PlateauMode mode = PlateauMode::min;  // Whether a better metric is lower or higher.
  double factor = 0.1;                  // Less than 1.
  std::int64_t patience = 10;           // Steps without a better metric before the rate is reduced.
  double threshold = 1e-4;              // A metric that is better by less does not count.
  ThresholdMode threshold_mode = ThresholdMode::rel;
  std::int64_t cooldown = 0;  // Steps after a reduction that do not count.
  PerGroup min_lr = 0.0;
  double eps = 1e-8;  // A reduction by less is omitted.
};

// Multiplies the rate by `factor` when a metric has not become better for more than `patience`
// steps. It begins when it is made: making it changes no rate.
//
// Unlike LibTorch's ReduceLROnPlateauScheduler, it computes in double, as Python does.
// Lifetime: the optimizer outlives it.
// Thread safety: none.
// Errors: misuse, naming it, for an option that is out of range; and for a param group that was
// added later if min_lr is a list.
class LOCKSTEP_API ReduceLROnPlateau : public Stateful {
 public:
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer,
                             const ReduceLROnPlateauOptions& options = {});
  ReduceLROnPlateau(const ReduceLROnPlateau&) = delete;
  ReduceLROnPlateau& operator=(const ReduceLROnPlateau&) = delete;

  // `metric` must be equal on all ranks: otherwise their rates drift apart.
  void step(double metric);

  // Takes the mean of the ranks' metrics, which has the same bits on all ranks. Collective.
  void step(double metric, const ProcessGroup& group);

  const std::vector<double>& get_last_lr() const { return last_lr_; }
  std::int64_t last_epoch() const { return last_epoch_; }

  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  optim::ScheduleFields fields();
  bool is_better(double metric) const;
  void reduce();

  torch::optim::Optimizer& optimizer_;
  ReduceLROnPlateauOptions options_;
  std::vector<double> min_lrs_;
  double best_;
  std::int64_t num_bad_epochs_ = 0;
  std::int64_t cooldown_counter_ = 0;
  std::int64_t last_epoch_ = 0;
  std::vector<double> last_lr_;
};

}  // namespace lockstep
