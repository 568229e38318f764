// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/operator_profile.h"

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/base/variables.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/job/profile_window.h"
#include "lockstep/job/step_clock.h"
#include "lockstep/job/timeline_recorder.h"
#include "lockstep/parallel/gradients/operator_record.h"

namespace lockstep::parallel {
namespace {

std::optional<ProfileWindow> window_of_environment() {
  const char* const told = read_variable("LOCKSTEP_PROFILE");
  if (told == nullptr || TimelineRecorder::current() == nullptr) return std::nullopt;
  const auto window = profile_window_of(told);
  require(window.has_value(), [&] {
    return "LOCKSTEP_PROFILE must be steps=FIRST:END, a window of steps, not " +
           clean_text(told, 100);
  });
  return window;
}

class OperatorProfile {
 public:
  explicit OperatorProfile(ProfileWindow window) : window_(window) {}

  void at_step(std::int64_t step, const ProcessGroup& group) {
    if (!has_begun_ && step >= window_.first && step < window_.end) begin(group);
    if (step >= window_.end) end();
  }

 private:
  void begin(const ProcessGroup& group) {
    has_begun_ = true;
    record_.emplace();
    before_end(group, last_act_);  // For a run that ends within the window.
  }

  // Must not throw: training continues without a profile.
  void end() {
    if (!record_) return;
    try {
      record_->save(TimelineRecorder::current()->operators_file().string());
    } catch (const std::exception& error) {
      log(LogLevel::warning, "the timeline lacks the operators: " + std::string(error.what()));
    }
    record_.reset();
  }

  const ProfileWindow window_;
  bool has_begun_ = false;
  std::optional<OperatorRecord> record_;
  const std::shared_ptr<const std::function<void()>> last_act_ =
      std::make_shared<const std::function<void()>>([this] { end(); });
};

}  // namespace

void profile_operators(const ProcessGroup& group) {
  static const std::optional<ProfileWindow> window = window_of_environment();
  if (!window) return;
  static auto& profile = *new OperatorProfile(*window);  // Outlives Kineto.
  if (StepClock* const clock = StepClock::adopted()) profile.at_step(clock->steps(), group);
}

}  // namespace lockstep::parallel
