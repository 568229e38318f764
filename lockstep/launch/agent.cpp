// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/agent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/message_parts.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/signal_names.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/process.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

// As time_to_die, between attempts. Other hosts treat 3 s of silence as a loss; remaining processes
// are killed when the job ends.
constexpr std::chrono::milliseconds time_to_sweep = 500ms;

// For ranks to end after their job. Every agent guarantees to exit within 5 s.
constexpr std::chrono::milliseconds time_after_the_end = 1s;

constexpr std::chrono::milliseconds time_to_remind = 10s;

// For this agent's last messages.
constexpr std::chrono::milliseconds time_to_say = 2s;

std::string count_of(int count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string attempt_folder(const std::string& file) {
  return std::filesystem::path(file).parent_path().parent_path();
}

}  // namespace

Agent::Agent(const RunOptions& options, const BindingPlan& binding, const sigset_t& signals,
             int lifeline)
    : options_(options),
      binding_(binding),
      supervisor_(lifeline),
      output_(STDOUT_FILENO, STDERR_FILENO, options.log),
      log_([this](LogLevel level, std::string_view text) {
        output_.say(text, level == LogLevel::error ? Level::error : Level::info);
      }),
      signals_(signals, [this](int signal) { on_signal(signal); }),
      rendezvous_(make_rendezvous(options)),
      reminder_(time_to_remind, [this] { say_who_is_missing(); }) {
  answer_as(options.hosts.id);
  if (options.metrics.empty()) return;
  metrics_service_.emplace(options.metrics, [this] { return status(); });
  output_.say("metrics at " + metrics_service_->url());
}

// `job_id` is the user's until the job has one.
void Agent::answer_as(const std::string& job_id) {
  status_service_.emplace(job_id, [this] { return status(); });
}

int Agent::run() {
  if (options_.verbose) {
    std::string_view picture = binding_.picture;
    while (picture.ends_with('\n')) picture.remove_suffix(1);
    output_.say(picture);
  }
  while (!over() && !supervisor_.is_cut()) turn();
  end_descendants(time_to_die);
  if (supervisor_.is_cut()) return 128 + SIGKILL;
  rendezvous_->flush(time_to_say);
  output_.finish();
  write_what_is_left();
  if (*exit_code_ == 0 && output_.lost()) {
    exit_code_ = exit_output_lost;
    output_.say(fmt::format("output of the ranks was lost; exit code {}", *exit_code_),
                Level::error);
    write_what_is_left();
  }
  return *exit_code_;
}

void Agent::write_what_is_left() {
  while (output_.pending() && !supervisor_.is_cut()) turn();
}

void Agent::turn() {
  std::vector<Pollable*> parts{&supervisor_, &output_, &log_, &*status_service_};
  if (metrics_service_) parts.push_back(&*metrics_service_);
  if (!ranks_) parts.push_back(&reminder_);
  if (ranks_) parts.push_back(&*ranks_);
  // After the ranks: one may have sent its session page.
  parts.push_back(&signals_);
  std::vector<Pollable*> all = parts;
  if (!exit_code_) all.push_back(rendezvous_.get());
  const std::vector<pollfd> entries = next_events(all);
  for (Pollable* part : parts) part->serve(entries);
  say_losses();
  if (ranks_) ranks_->act_on_deadlines();
  if (ranks_ && ranks_->ending() && attempt_ < Attempt::reported) report_failure();
  conclude_if_ended();
  if (exit_code_) return;
  rendezvous_->serve(entries);
  for (const Order& order : rendezvous_->take_orders()) obey(order);
  // An order may have ended an attempt whose only ranks waited to start again.
  conclude_if_ended();
}

void Agent::conclude_if_ended() {
  if (attempt_ != Attempt::concluded && ranks_->running() == 0 && !ranks_->lingering()) conclude();
}

// Before act_on_deadlines(), after which a new process may have a lost rank's place.
void Agent::say_losses() {
  if (!ranks_ || !ranks_->continuation()) return;
  for (const Continuation::Loss& loss : ranks_->continuation()->take_losses()) {
    say_failure(loss.failure, "");
    output_.say(loss.consequence);
  }
}

void Agent::obey(const Order& order) {
  if (const auto* round = std::get_if<StartRanks>(&order)) start(round->round);
  if (const auto* later = std::get_if<StartLater>(&order)) say_pause(*later);
  if (const auto* which = std::get_if<EndRanks>(&order)) end(*which);
  if (const auto* how = std::get_if<EndJob>(&order)) finish(*how);
}

void Agent::start(const Round& round) {
  check(!ranks_ || ranks_->running() == 0, "ranks of an earlier attempt run");
  if (ended_because_)
    output_.say(fmt::format("{}attempt {}: {} on {}, restart {} of {}", say_why_ended(),
                            round.attempt, count_of(round.world_size, "rank"),
                            count_of(round.nodes, "host"), round.restarts, options_.max_restarts));
  if (!ranks_) answer_as(round.job_id);
  output_.begin_attempt(round.job_id, round.attempt);
  if (const std::string file = output_.error_file(0); !file.empty())
    output_.say(fmt::format("files of the ranks are in {}", attempt_folder(file)));
  ended_because_.reset();
  attempt_ = Attempt::running;
  ranks_.emplace(options_, round, binding_, rendezvous_->token(), output_);
}

void Agent::say_who_is_missing() {
  output_.say(fmt::format("no ranks after {:.0f} s at {}: {}", seconds_since(start_),
                          options_.hosts.endpoint, rendezvous_->state()));
}

void Agent::say_pause(const StartLater& order) {
  output_.say(fmt::format("{}restarting in {:g} s", say_why_ended(),
                          std::chrono::duration<double>(order.pause).count()));
}

void Agent::end(const EndRanks& order) {
  ended_because_ = order;
  if (!ranks_) return;
  if (attempt_ == Attempt::concluded) return rendezvous_->all_gone(ranks_->round().attempt);
  attempt_ = Attempt::reported;  // Later failures are consequences.
  if (ranks_->ending()) return;
  if (order.failure) return ranks_->end_after(*order.failure);
  output_.say(fmt::format("{}: ending the ranks", order.why));
  ranks_->end(SIGTERM, options_.shutdown_timeout);
}

void Agent::finish(const EndJob& order) {
  exit_code_ = order.exit_code;
  say_straggler();
  if (ranks_ && ranks_->running() > 0)
    ranks_->end(SIGTERM, std::min(options_.shutdown_timeout, time_after_the_end));
  say_why(order);
}

// Makes other hosts end their ranks.
void Agent::report_failure() {
  if (ranks_->round().nodes == 1 || !ranks_->result().first_failure()) return;
  report(Outcome::failed, ranks_->result().exit_code());
}

void Agent::say_straggler() {
  if (const auto straggler = find_straggler(rendezvous_->times()))
    output_.say(describe(*straggler));
}

void Agent::report(Outcome outcome, int exit_code) {
  if (ranks_) rendezvous_->tell_times(ranks_->times());
  attempt_ = std::max(attempt_, Attempt::reported);
  rendezvous_->report(
      ranks_ ? ranks_->round().attempt : -1, outcome, exit_code,
      outcome == Outcome::failed ? ranks_->result().first_with_alike() : std::nullopt);
}

void Agent::conclude() {
  const bool reported = attempt_ == Attempt::reported;
  attempt_ = Attempt::concluded;
  end_descendants(time_to_sweep);
  const Outcome outcome = ranks_->result().outcome();
  if (const auto& continuation = ranks_->continuation();
      continuation && continuation->failures() > 0 && outcome == Outcome::succeeded)
    output_.say(fmt::format("the other ranks survived {}; replacements started: {}",
                            count_of(continuation->failures(), "failure"),
                            continuation->replacements()));
  const auto& first = ranks_->result().first_failure();
  const bool knows_better =
      first && (ranks_->is_local(first->rank) || is_common(*ranks_->result().first_with_alike()));
  if (outcome == Outcome::failed && (knows_better || !reported))
    report(outcome, ranks_->result().exit_code());
  else if (!reported)
    report(outcome, outcome == Outcome::preempted ? exit_preempted : ranks_->result().exit_code());
  rendezvous_->all_gone(ranks_->round().attempt);
  if (leaving_ && !exit_code_) finish({128 + *stopped_by_, "", std::nullopt});
}

void Agent::on_signal(int signal) {
  if (signal == SIGCHLD) {
    if (ranks_) ranks_->reap();
    return;
  }
  const auto& ends = options_.signals_to_handle;
  const bool is_new = signal == SIGUSR1 || signal == SIGUSR2;
  if (is_new && std::find(ends.begin(), ends.end(), signal) == ends.end()) {
    if (!ranks_ || !ranks_->pass_on(signal))
      output_.say(
          fmt::format("{}: not passed on, as no rank has a handler for it", signal_name(signal)));
    return;
  }
  const bool may_be_notice = signal == SIGTERM && attempt_ == Attempt::running && !ranks_->ending();
  if (may_be_notice && ranks_->expect_preemption()) {
    attempt_ = Attempt::preempting;
    if (ranks_->continuation()) ranks_->continuation()->stop();
    ranks_->pass_on(signal);
    output_.say("SIGTERM: asking the ranks to save and exit; a second SIGTERM kills them");
    return;
  }
  on_stop_signal(signal);
}

void Agent::on_stop_signal(int signal) {
  if (exit_code_ && over()) return output_.drop();
  if (stopped_by_) {
    if (signal != SIGINT) return;
    if (ranks_) ranks_->kill_all();
    if (!ranks_ || ranks_->running() == 0) exit_code_ = 128 + signal;
    return;
  }
  stopped_by_ = signal;
  // An earlier failure decides how the job ends.
  if (attempt_ < Attempt::reported && ranks_->result().first_failure())
    report(Outcome::failed, ranks_->result().exit_code());
  // A removed host leaves an elastic job; the store's host ends the job.
  const bool may_leave = options_.hosts.least < options_.hosts.most && signal != SIGINT;
  leaving_ = may_leave && (!ranks_ || ranks_->round().node != 0);
  if (ranks_ && !ranks_->ending() && ranks_->running() > 0)
    ranks_->end(signal == SIGINT ? SIGINT : SIGTERM, options_.shutdown_timeout);
  report(leaving_ ? Outcome::left : Outcome::stopped, 128 + signal);
  if (leaving_ && attempt_ == Attempt::concluded) finish({128 + signal, "", std::nullopt});
}

std::string Agent::say_failure(const Failure& reported, const std::string& consequences) {
  Failure failure = ranks_ ? ranks_->better_known(reported) : reported;
  const MessageParts parts = report_of(failure, !ranks_ || ranks_->was_attached(failure));
  output_.say(parts.what, Level::error);
  output_.say(fmt::format("caused by {}{}", parts.who, consequences), Level::error);
  if (is_common(failure)) {
    failure.ranks.clear();
    failure.rank = -1;
    failure.pid = 0;
    failure.host.clear();
  }
  log_failure_record(failure);
  return parts.to_do;
}

void Agent::log_failure_record(const Failure& failure) {
  const std::string record = failure_record(ranks_ ? ranks_->round().job_id : "", failure,
                                            ranks_ ? ranks_->result().noticed_after() : 0ms);
  if (options_.log.format == LogFormat::json)
    output_.say(record, Level::error);
  else
    log(LogLevel::info, record);
}

// Logs the failure that ended the latest attempt, once. Returns any other cause, to precede the
// next line.
std::string Agent::say_why_ended() {
  if (!ended_because_) return "";
  const EndRanks because = std::exchange(*ended_because_, {});
  if (because.failure) say_failure(*because.failure, "");
  return because.failure || because.why.empty() ? "" : because.why + "; ";
}

void Agent::say_why(const EndJob& order) {
  if (ranks_ && ranks_->result().start_error() != 0) return;
  const Level level = *exit_code_ == 0 ? Level::info : Level::error;
  const std::string code = *exit_code_ == 0 ? "" : fmt::format("exit code {}", *exit_code_);
  if (order.failure) {
    const std::vector<int> others = ranks_ ? ranks_->result().also_failed() : std::vector<int>{};
    std::string consequences =
        others.empty() ? "" : fmt::format("; then {} failed too", name_of_ranks(others));
    if (!code.empty()) consequences += "; " + code;
    const std::string to_do = say_failure(*order.failure, consequences);
    return output_.say("to do: " + to_do, Level::error);
  }
  if (stopped_by_)
    return output_.say(
        fmt::format("stopped by {}; exit code {}", signal_name(*stopped_by_), *exit_code_), level);
  if (order.why.empty() && !ranks_) output_.say("the job has ended; it did not need this host");
  const MessageParts parts = parts_of(order.why);
  if (!parts.what.empty()) output_.say(parts.what, level);
  if (!parts.who.empty())
    output_.say(fmt::format("caused by {}; {}", parts.who, code), level);
  else if (!code.empty())
    output_.say(code, level);
  if (!parts.to_do.empty()) output_.say("to do: " + parts.to_do, level);
}

JobStatus Agent::status() const {
  JobStatus status;
  for (const std::string& word : options_.arguments)
    status.program += (status.program.empty() ? "" : " ") + word;
  status.agent_pid = ::getpid();
  status.host = host_name();
  status.seconds = seconds_since(start_);
  status.state = attempt_ == Attempt::concluded ? rendezvous_->state()
                 : ranks_->ending()             ? "ending"
                                                : "running";
  if (!ranks_) return status;
  const Round& round = ranks_->round();
  status.job_id = round.job_id;
  status.node = round.node;
  status.nodes = round.nodes;
  status.world_size = round.world_size;
  status.attempt = round.attempt;
  status.restarts = round.restarts;
  status.ranks = ranks_->status();
  return status;
}

}  // namespace lockstep::launch
