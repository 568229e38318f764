// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/progress.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/variables.h"
#include "lockstep/job/step_times.h"
#include "lockstep/train/progress_line.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr auto terminal_interval = 100ms;
constexpr auto log_interval = 5s;
constexpr auto phases_interval = 2s;
constexpr int usual_columns = 80;

// Empty for a program that enters no phases.
std::string text_of(const StepTimes& times) {
  if (times.total() == times[StepPhase::other]) return "";
  std::string text = describe(times, StepPhase::data);
  if (times.latest_rank() >= 0) text += ", " + describe(times, StepPhase::wait);
  return text;
}

// 0 if the launcher reported none.
int relayed_columns() {
  const char* text = read_variable("LOCKSTEP_TERMINAL");
  return text == nullptr ? 0 : std::clamp(std::atoi(text), 0, 10'000);
}

}  // namespace

struct Progress::State : train::ProgressState {
  const StepTimes at_start = step_times();
  StepTimes shown = at_start;
  Clock::time_point shown_at = Clock::now();

  void show_phases(Clock::time_point now, bool last) {
    if (!last && now - shown_at < phases_interval) return;
    const StepTimes times = step_times();
    phases = text_of(times - (last ? at_start : shown));
    shown = times;
    shown_at = now;
  }
};

Progress::Progress(std::int64_t total_steps, ProgressOptions options)
    : fd_(options.fd),
      on_terminal_(options.enabled && (relayed_columns() > 0 || ::isatty(fd_) == 1)),
      started_(Clock::now()),
      drawn_(started_),
      state_(std::make_unique<State>()),
      ended_(!options.enabled) {
  require(total_steps >= 0, "Progress: total_steps must not be negative");
  require(options.done >= 0 && options.done <= total_steps,
          "Progress: done must be in 0..total_steps");
  state_->label = std::move(options.label);
  state_->total_steps = total_steps;
  state_->steps = state_->earlier_steps = options.done;
}

Progress::~Progress() {
  try {
    if (!ended_) draw(Clock::now(), /*last=*/true);
  } catch (const std::exception&) {
    // Out of memory, probably during another exception.
  }
}

void Progress::step(std::int64_t samples, std::optional<double> loss) {
  if (ended_) return;
  ++state_->steps;
  state_->samples += samples;
  if (loss) state_->loss = loss;

  const auto now = Clock::now();
  const bool last = state_->steps >= state_->total_steps;
  const Clock::duration interval =
      on_terminal_ ? Clock::duration(terminal_interval) : Clock::duration(log_interval);
  if (last || now - drawn_ >= interval) draw(now, last);
}

void Progress::draw(Clock::time_point now, bool last) {
  state_->elapsed = now - started_;
  state_->show_phases(now, last);
  std::string text =
      on_terminal_ ? train::progress_bar(*state_, columns()) : train::progress_line(*state_);
  if (on_terminal_) {
    const std::size_t before = std::exchange(width_, text.size());
    text.resize(std::max(before, width_), ' ');  // Overwrites the previous text.
    text.insert(text.begin(), '\r');
  }
  if (last || !on_terminal_) text += '\n';

  // A single write, so that no other output comes between.
  [[maybe_unused]] const auto ignored = ::write(fd_, text.data(), text.size());
  drawn_ = now;
  ended_ = last;
}

int Progress::columns() const {
  if (const int relayed = relayed_columns()) return relayed;
  winsize size{};  // Queried each time: windows are resized.
  return ::ioctl(fd_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : usual_columns;
}

}  // namespace lockstep
