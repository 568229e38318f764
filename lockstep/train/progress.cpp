// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/progress.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/train/progress_line.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr auto terminal_interval = 100ms;
constexpr auto log_interval = 5s;
constexpr int usual_columns = 80;

// The width of the terminal that our launcher writes to; 0 if it reported none.
int relayed_columns() {
  const char* text = std::getenv("LOCKSTEP_TERMINAL");
  return text == nullptr ? 0 : std::clamp(std::atoi(text), 0, 10'000);
}

}  // namespace

struct Progress::State : train::ProgressState {};

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
    // Out of memory, probably during another exception; nothing can be reported.
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
  std::string text =
      on_terminal_ ? train::progress_bar(*state_, columns()) : train::progress_line(*state_);
  if (on_terminal_) {
    const std::size_t before = std::exchange(width_, text.size());
    text.resize(std::max(before, width_), ' ');  // Overwrites the previous text.
    text.insert(text.begin(), '\r');
  }
  if (last || !on_terminal_) text += '\n';

  // Uses a single write, so that no other output comes between. Errors are ignored; the next write
  // says more.
  [[maybe_unused]] const auto ignored = ::write(fd_, text.data(), text.size());
  drawn_ = now;
  ended_ = last;
}

int Progress::columns() const {
  if (const int relayed = relayed_columns()) return relayed;
  winsize size{};  // Queried each time, because windows are resized.
  return ::ioctl(fd_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : usual_columns;
}

}  // namespace lockstep
