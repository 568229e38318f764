// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/run_log/run_log.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/output_file.h"
#include "lockstep/base/text.h"
#include "lockstep/base/time.h"
#include "lockstep/base/wall_time.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/comm/values.h"
#include "lockstep/job/activity.h"
#include "lockstep/job/step_clock.h"
#include "lockstep/toolkit/run_log/link_speeds.h"
#include "lockstep/toolkit/run_log/run_collector.h"

namespace lockstep {
namespace {

using run_log::EventFile;
using run_log::RankReport;
using run_log::ReportInbox;
using run_log::ReportOutbox;
using run_log::RunCollector;
using run_log::RunFacts;
using run_log::RunFiles;

// First character of rank 0's answer.
constexpr char no_files = '-';
constexpr char has_files = '+';
constexpr char cannot_write = 'x';  // Followed by the reason.

std::string open_files(const RunLogOptions& options, RunFiles& files) {
  if (options.tensorboard.empty() && options.json.empty()) return {no_files};
  try {
    if (!options.tensorboard.empty()) files.events.emplace(options.tensorboard);
    files.json = options.json;
    if (!files.json.empty()) const AtomicFile probe(files.json, 0);
  } catch (const Error& error) {
    return cannot_write + bare_text(error);
  } catch (const std::exception& error) {
    return cannot_write + std::string(error.what());
  }
  return {has_files};
}

std::vector<double> values_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kCPU, at::kDouble).contiguous();
  const double* const data = flat.const_data_ptr<double>();
  return {data, data + flat.numel()};
}

std::vector<int> job_ranks(const ProcessGroup& group) {
  std::vector<int> ranks;
  for (int rank = 0; rank < group.size(); ++rank) ranks.push_back(job_rank(group, rank));
  return ranks;
}

// A group's RunLogs on this rank. They end with it, if not before.
struct Kept {
  std::vector<std::shared_ptr<void>> logs;
};

}  // namespace

class RunLog::State {
 public:
  State(const ProcessGroup& group, RunLogOptions options, RunFiles files);

  void begin_step(std::int64_t samples);
  void end_step();
  void scalar(std::string_view name, double value);

  bool adds_events() const { return collector_ && !is_closed_; }
  void add_events(std::function<void(EventFile&)> add) { collector_->take_events(std::move(add)); }
  std::int64_t current_step() const { return report_.step; }

  void close();
  const std::shared_ptr<const std::function<void()>>& last_act() const { return last_act_; }

 private:
  void add_row(Ticks now);
  RankReport take_report();
  double reduced_bytes_per_step();
  void report_now_and_then();
  void close_quietly() noexcept;

  const std::chrono::milliseconds interval_;
  const std::chrono::milliseconds timeout_;
  StepClock* const clock_ = StepClock::adopted();  // Null if another thread runs the loop.
  StepTimes at_start_;
  StepTimes after_first_step_;
  const std::weak_ptr<const std::atomic<std::uint64_t>> reduced_bytes_;
  std::uint64_t reduced_at_start_ = 0;
  double reduced_per_step_ = 0;

  Ticks row_began_ = 0;
  std::array<Ticks, step_phases> spent_before_{};
  std::int64_t steps_ = 0;  // That have ended.
  bool is_in_step_ = false;
  bool is_closed_ = false;
  RankReport report_;  // The next one.
  Clock::time_point reported_ = Clock::now();

  // For reports. Kept until its parent ends: dropping it would break it for others.
  std::optional<ProcessGroup> own_group_;
  std::optional<RunCollector> collector_;  // On rank 0.
  std::optional<ReportOutbox> outbox_;     // On the others.
  const std::shared_ptr<const std::function<void()>> last_act_ =
      std::make_shared<const std::function<void()>>([this] { close_quietly(); });
};

RunLog::State::State(const ProcessGroup& group, RunLogOptions options, RunFiles files)
    : interval_(options.interval),
      timeout_(timeout_of(group)),
      reduced_bytes_(reduced_bytes(group)) {
  report_.rank = group.rank();
  report_.step = options.first_step;
  RunFacts facts{.started = wall_time(),
                 .host_of_rank = host_of_ranks(group),
                 .job_ranks = job_ranks(group),
                 .options = std::move(options.options),
                 .first_step = options.first_step};
  facts.links = run_log::measure_links(group, facts.host_of_rank);
  if (group.size() > 1) own_group_ = group.split(0, group.rank(), {.label = "run log"});
  if (group.rank() != 0) {
    outbox_.emplace(*own_group_);
  } else {
    std::optional<ReportInbox> inbox;
    if (own_group_) inbox.emplace(*own_group_);
    collector_.emplace(std::move(files), std::move(facts), std::move(inbox), interval_);
  }
  if (const auto bytes = reduced_bytes_.lock()) reduced_at_start_ = *bytes;
  row_began_ = ticks_now();
  if (clock_ != nullptr) spent_before_ = clock_->spent_until(row_began_);
  at_start_ = step_times();  // Excludes the waits above.
}

void RunLog::State::begin_step(std::int64_t samples) {
  require(!is_in_step_, "RunLog: a step begins before the last one has ended");
  is_in_step_ = true;
  if (steps_ > 0) ++report_.step;
  report_.samples += samples;
}

void RunLog::State::end_step() {
  is_in_step_ = false;
  ++steps_;
  if (is_closed_) return;
  add_row(ticks_now());
  if (steps_ == 1) after_first_step_ = step_times();
  report_now_and_then();
}

void RunLog::State::add_row(Ticks now) {
  const auto seconds = [](Ticks ticks) {
    return std::chrono::duration<float>(time_in(ticks)).count();
  };
  run_log::StepRow& row = report_.rows.emplace_back();
  row[0] = seconds(now - row_began_);
  row_began_ = now;
  if (clock_ == nullptr) return;
  const auto spent = clock_->spent_until(now);
  for (std::size_t i = 0; i < step_phases; ++i) row[1 + i] = seconds(spent[i] - spent_before_[i]);
  spent_before_ = spent;
}

void RunLog::State::scalar(std::string_view name, double value) {
  if (is_closed_) return;
  auto found = report_.scalars.find(name);
  if (found == report_.scalars.end()) found = report_.scalars.try_emplace(std::string(name)).first;
  found->second.push_back({report_.step, wall_time(), value});
}

RankReport RunLog::State::take_report() {
  const StepTimes now = step_times();
  report_.times = now - at_start_;
  report_.times.waited_for.clear();
  if (steps_ > 0) report_.times.waited_for = (now - after_first_step_).waited_for;
  reported_ = Clock::now();
  return std::exchange(report_, {.rank = report_.rank, .step = report_.step});
}

// After the group's end, the last value.
double RunLog::State::reduced_bytes_per_step() {
  if (const auto bytes = reduced_bytes_.lock(); bytes && steps_ > 0)
    reduced_per_step_ =
        static_cast<double>(*bytes - reduced_at_start_) / static_cast<double>(steps_);
  return reduced_per_step_;
}

void RunLog::State::report_now_and_then() {
  if (Clock::now() - reported_ < interval_) return;
  if (collector_) return collector_->take(take_report(), reduced_bytes_per_step());
  if (outbox_->is_broken())
    static_cast<void>(take_report());  // Discarded.
  else if (outbox_->is_idle())
    outbox_->send(take_report());
}

void RunLog::State::close() {
  if (std::exchange(is_closed_, true)) return;
  RankReport last = take_report();
  last.is_last = true;
  if (outbox_) return outbox_->finish(last, in(timeout_));
  collector_->take(std::move(last), reduced_bytes_per_step());
  collector_->finish(in(timeout_));
  collector_.reset();
}

void RunLog::State::close_quietly() noexcept {
  try {
    close();
  } catch (const std::exception&) {
    return;
  }
}

RunLog::RunLog(const ProcessGroup& group, RunLogOptions options) {
  RunFiles files;
  const std::string mine = group.rank() == 0 ? open_files(options, files) : "";
  const std::string answer = broadcast_bytes(mine, group, 0, {.label = "files of the run log"});
  if (answer.front() == cannot_write) throw Error(Fault::system, "RunLog: " + answer.substr(1));
  if (answer.front() == no_files) return;
  state_ = std::make_shared<State>(group, std::move(options), std::move(files));
  before_end(group, state_->last_act());
  attachment_of<Kept>(group)->logs.push_back(state_);
}

RunLog::~RunLog() = default;

RunLog::Step RunLog::step(std::int64_t samples) {
  if (state_) state_->begin_step(samples);
  return Step(state_.get());
}

RunLog::Step::Step(Step&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}

RunLog::Step::~Step() {
  if (state_ != nullptr) state_->end_step();
}

void RunLog::scalar(std::string_view name, double value) {
  if (state_) state_->scalar(name, value);
}

void RunLog::scalar(std::string_view name, const at::Tensor& value) {
  if (state_) state_->scalar(name, value.item<double>());
}

void RunLog::histogram(std::string_view name, const at::Tensor& values) {
  if (!state_ || !state_->adds_events()) return;
  auto histogram = run_log::Histogram::of(values_of(values));
  if (histogram.count == 0) return;
  state_->add_events([name = std::string(name), step = state_->current_step(), time = wall_time(),
                      histogram = std::move(histogram)](EventFile& file) {
    file.histogram(name, step, time, histogram);
  });
}

void RunLog::text(std::string_view name, std::string_view text) {
  if (!state_ || !state_->adds_events()) return;
  state_->add_events(
      [name = std::string(name), step = state_->current_step(), time = wall_time(),
       text = std::string(text)](EventFile& file) { file.text(name, step, time, text); });
}

void RunLog::close() {
  if (state_) state_->close();
}

}  // namespace lockstep
