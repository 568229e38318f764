// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/run_log/run_collector.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/output_file.h"

namespace lockstep::run_log {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds look_interval = 100ms;
constexpr std::chrono::milliseconds busy_interval = 1ms;
constexpr int least_writes_apart = 100;  // In durations of a write.

}  // namespace

RunCollector::RunCollector(RunFiles files, RunFacts facts, std::optional<ReportInbox> inbox,
                           std::chrono::milliseconds interval)
    : interval_(interval),
      files_(std::move(files)),
      record_(facts),
      means_(static_cast<int>(facts.host_of_rank.size())),
      inbox_(std::move(inbox)) {
  write("running");
  thread_ = start_thread(&RunCollector::live, this);
}

RunCollector::~RunCollector() {
  stop();
  if (is_finished_) return;
  receive();
  means_.end();
  write("failed");
}

void RunCollector::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    stops_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void RunCollector::live() {
  Deadline next_write = in(interval_);
  bool comes = false;  // More may arrive.
  const auto stops = [&] {
    std::unique_lock lock(mutex_);
    return stops_.wait_for(lock, comes ? busy_interval : look_interval,
                           [&] { return is_stopping_; });
  };
  while (!stops()) {
    comes = receive();
    const auto begin = Clock::now();
    if (begin < next_write) continue;
    write("running");
    const auto took = Clock::now() - begin;
    next_write = Clock::now() + std::max<Clock::duration>(interval_, least_writes_apart * took);
  }
}

void RunCollector::take(RankReport report, double all_reduce_bytes) {
  const std::lock_guard lock(mutex_);
  own_.reports.push_back(std::move(report));
  own_.all_reduce_bytes = all_reduce_bytes;
}

void RunCollector::take_events(std::function<void(EventFile&)> add) {
  const std::lock_guard lock(mutex_);
  own_.events.push_back(std::move(add));
}

bool RunCollector::receive() noexcept {
  try {
    return take_in();
  } catch (const std::exception&) {
    fail();
    return false;
  }
}

// Whether reports have arrived.
bool RunCollector::take_in() {
  std::unique_lock lock(mutex_);
  const Own own = std::exchange(own_, {.all_reduce_bytes = own_.all_reduce_bytes});
  lock.unlock();
  std::vector<RankReport> others;
  if (inbox_ && !inbox_->is_over()) others = inbox_->take();
  if (error_) return !others.empty();  // Nothing takes them any more.
  record_.set_all_reduce_bytes(own.all_reduce_bytes);
  for (const RankReport& report : own.reports) add(report);
  if (files_.events)
    for (const auto& add_to : own.events) add_to(*files_.events);
  for (const RankReport& report : others) add(report);
  if (inbox_ && inbox_->is_over()) means_.end_all_but(0);
  return !others.empty();
}

// Only while handling an exception.
void RunCollector::fail() noexcept {
  if (error_) return;
  error_ = std::current_exception();
  try {
    std::rethrow_exception(error_);
  } catch (const std::exception& error) {
    log(LogLevel::error, "the run log is no longer written: " + std::string(error.what()));
  }
}

void RunCollector::add(const RankReport& report) {
  record_.add(report);
  means_.add(report);
}

void RunCollector::finish(Deadline deadline) {
  stop();
  for (receive(); inbox_ && !inbox_->is_over() && Clock::now() < deadline; receive())
    std::this_thread::sleep_for(1ms);
  means_.end();
  is_finished_ = true;
  write(!inbox_ || inbox_->have_all_ended() ? "finished" : "failed");
  if (error_) std::rethrow_exception(error_);
}

void RunCollector::write(std::string_view ended) noexcept {
  if (error_) return;
  try {
    write_files(ended);
  } catch (const std::exception&) {
    fail();
  }
}

void RunCollector::write_files(std::string_view ended) {
  for (const ScalarMean& mean : means_.take_complete()) {
    if (files_.events) files_.events->scalar(mean.name, mean.step, mean.time, mean.value);
    record_.add(mean);
  }
  if (files_.events) files_.events->flush();
  if (files_.json.empty()) return;
  const std::string text = record_.json(ended, seconds_since(started_));
  AtomicFile file(files_.json, text.size());
  file.write(std::as_bytes(std::span(text)));
  file.commit_unsynced();
}

}  // namespace lockstep::run_log
