// Python's ReduceLROnPlateau: a schedule that depends on a metric, such as a validation loss.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/state.h"
#include "lockstep/toolkit/schedules/per_group.h"

namespace lockstep::schedules {

class ScheduleFields;

}  // namespace lockstep::schedules

namespace lockstep {

enum class PlateauMode : std::uint8_t { min, max };
enum class ThresholdMode : std::uint8_t { rel, abs };

struct ReduceLROnPlateauOptions {
  PlateauMode mode = PlateauMode::min;
  double factor = 0.1;         // Less than 1.
  std::int64_t patience = 10;  // Steps without improvement before a reduction.
  double threshold = 1e-4;     // Smaller improvements do not count.
  ThresholdMode threshold_mode = ThresholdMode::rel;
  std::int64_t cooldown = 0;  // Steps after a reduction that do not count.
  PerGroup min_lr = 0.0;
  double eps = 1e-8;  // Smaller reductions are skipped.
};

// Multiplies the rate by `factor` if a metric has not improved for more than `patience` steps.
// Computes in double, as Python does.
// Lifetime: the optimizer outlives it. Thread safety: none.
// Errors: misuse for an option that is out of range, and, if min_lr is a list, for a later param
// group. Add param groups before loading a state that has them.
class LOCKSTEP_API ReduceLROnPlateau : public Stateful {
 public:
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer,
                             const ReduceLROnPlateauOptions& options = {});
  ReduceLROnPlateau(const ReduceLROnPlateau&) = delete;
  ReduceLROnPlateau& operator=(const ReduceLROnPlateau&) = delete;

  // `metric` must be equal on all ranks, or their rates diverge.
  void step(double metric);

  // Takes the mean of the ranks' metrics, with the same bits on all ranks. Collective.
  void step(double metric, const ProcessGroup& group);

  const std::vector<double>& get_last_lr() const { return last_lr_; }
  std::int64_t last_epoch() const { return last_epoch_; }

  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  schedules::ScheduleFields fields();
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
