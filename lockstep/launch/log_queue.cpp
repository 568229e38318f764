// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/log_queue.h"

#include <sys/eventfd.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// With more lines than this, the loop has stopped and will not read them.
constexpr std::size_t most_lines = 1000;

}  // namespace

LogQueue::LogQueue() : ready_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!ready_) throw_errno("making an eventfd");
  set_log_sink([this](LogLevel level, std::string_view message) {
    const std::lock_guard lock(mutex_);
    if (lines_.size() < most_lines) lines_.emplace_back(level, message);
    ::eventfd_write(ready_.get(), 1);
  });
}

LogQueue::~LogQueue() { set_log_sink({}); }

void LogQueue::watch(std::vector<pollfd>& entries) const {
  entries.push_back({ready_.get(), POLLIN, 0});
}

std::vector<LogQueue::Line> LogQueue::take() {
  eventfd_t ignored = 0;
  const std::lock_guard lock(mutex_);
  ::eventfd_read(ready_.get(), &ignored);
  return std::exchange(lines_, {});
}

}  // namespace lockstep
