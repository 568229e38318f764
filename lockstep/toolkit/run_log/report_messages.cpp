// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/run_log/report_messages.h"

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep::run_log {
namespace {

constexpr auto no_timeout = std::chrono::milliseconds::max();
constexpr std::int64_t length_tag = 1;
constexpr std::int64_t report_tag = 2;
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 26;

Buffer buffer_of(std::string& bytes) {
  return {.data = bytes.data(), .count = bytes.size(), .dtype = DType::uint8};
}

Buffer buffer_of(std::uint64_t& length) {
  return {.data = &length, .count = sizeof length, .dtype = DType::uint8};
}

void report_loss(const std::exception& error) {
  log(LogLevel::info, "the run log gets no more reports of ranks: " + std::string(error.what()));
}

}  // namespace

void ReportOutbox::send(const RankReport& report) {
  if (is_broken()) return;
  const auto bytes = std::make_shared<std::string>(encode(report));
  const auto length = std::make_shared<std::uint64_t>(bytes->size());
  try {
    group_.send_async(buffer_of(*length), 0, length_tag,
                      {.timeout = no_timeout, .keep_alive = length});
    work_ = group_.send_async(buffer_of(*bytes), 0, report_tag,
                              {.timeout = no_timeout, .keep_alive = bytes});
  } catch (const Error& error) {
    is_broken_ = true;
    report_loss(error);
  }
}

void ReportOutbox::finish(const RankReport& report, Deadline deadline) {
  try {
    if (work_) work_->wait(until(deadline));
    send(report);
    if (work_) work_->wait(until(deadline));
  } catch (const Error& error) {
    is_broken_ = true;
    report_loss(error);
  }
}

ReportInbox::ReportInbox(ProcessGroup group) : group_(std::move(group)) { expect_length(); }

void ReportInbox::expect_length() {
  report_.reset();
  next_ = group_.recv_async(buffer_of(*length_), any_source, length_tag,
                            {.timeout = no_timeout, .keep_alive = length_});
}

void ReportInbox::expect_report() {
  if (*length_ > most_bytes) throw Error(Fault::corrupt, "a report of a rank is too long");
  sender_ = next_.source().rank;
  report_ = std::make_shared<std::string>(*length_, '\0');
  next_ = group_.recv_async(buffer_of(*report_), sender_, report_tag,
                            {.timeout = no_timeout, .keep_alive = report_});
}

RankReport ReportInbox::take_report() {
  RankReport report = decode(*report_);
  if (report.rank != sender_) throw Error(Fault::corrupt, "a report is of another rank");
  if (report.is_last) ++ended_;
  return report;
}

std::vector<RankReport> ReportInbox::take() {
  std::vector<RankReport> reports;
  try {
    while (!is_over() && next_.is_completed()) {
      next_.wait();  // For its Error.
      if (!report_) {
        expect_report();
        continue;
      }
      reports.push_back(take_report());
      if (!is_over()) expect_length();
    }
  } catch (const std::exception& error) {
    is_lost_ = true;
    report_loss(error);
  }
  return reports;
}

}  // namespace lockstep::run_log
