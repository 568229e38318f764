// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/operator_profile.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/job/step_clock.h"
#include "lockstep/job/timeline_recorder.h"

namespace lockstep::parallel {
namespace {

namespace kineto = torch::autograd::profiler;
namespace settings = torch::profiler::impl;

struct Window {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

std::int64_t number_in(std::string_view text, std::string_view whole) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  require(error == std::errc() && end == text.data() + text.size(), [&] {
    return "LOCKSTEP_PROFILE must be steps=FIRST:END, not " + clean_text(whole, 100);
  });
  return number;
}

std::optional<Window> window_of_environment() {
  constexpr std::string_view key = "steps=";
  const char* const told = std::getenv("LOCKSTEP_PROFILE");
  if (told == nullptr || *told == '\0' || TimelineRecorder::current() == nullptr)
    return std::nullopt;
  const std::string_view text = told;
  const std::size_t begin = text.starts_with(key) ? key.size() : 0;
  const std::size_t colon = std::min(text.find(':'), text.size());
  return Window{number_in(text.substr(begin, colon - begin), text),
                number_in(text.substr(std::min(colon + 1, text.size())), text)};
}

class OperatorProfile {
 public:
  explicit OperatorProfile(Window window) : window_(window) {}

  void at_step(std::int64_t step, const ProcessGroup& group) {
    if (state_ == State::waits && step >= window_.first && step < window_.end) begin(group);
    if (state_ == State::records && step >= window_.end) end();
  }

 private:
  enum class State { waits, records, is_over };

  void begin(const ProcessGroup& group) {
    const settings::ProfilerConfig config(settings::ProfilerState::KINETO);
    const std::set<settings::ActivityType> activities{settings::ActivityType::CPU};
    kineto::prepareProfiler(config, activities);
    kineto::enableProfiler(config, activities);
    state_ = State::records;
    before_end(group, last_act_);  // For a run that ends within the window.
  }

  void end() {
    if (state_ != State::records) return;
    state_ = State::is_over;
    kineto::disableProfiler()->save(TimelineRecorder::current()->operators_file().string());
  }

  const Window window_;
  State state_ = State::waits;
  const std::shared_ptr<const std::function<void()>> last_act_ =
      std::make_shared<const std::function<void()>>([this] { end(); });
};

}  // namespace

void profile_operators(const ProcessGroup& group) {
  static const std::optional<Window> window = window_of_environment();
  if (!window) return;
  static OperatorProfile profile(*window);
  if (StepClock* const clock = StepClock::adopted()) profile.at_step(clock->steps(), group);
}

}  // namespace lockstep::parallel
