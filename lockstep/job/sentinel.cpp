// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/sentinel.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr int heartbeat_ms = 100;

}  // namespace

Sentinel::Sentinel(JobPage& page, int slot, Switchboard* switchboard, std::function<void()> look)
    : page_(page),
      slot_(slot),
      switchboard_(switchboard),
      look_(std::move(look)),
      stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (!stop_) throw_errno("making an eventfd");
  std::promise<void> entered;
  std::future<void> outcome = entered.get_future();
  thread_ = start_thread(&Sentinel::live, this, std::move(entered));
  try {
    outcome.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

Sentinel::~Sentinel() {
  // Writing 1 to an eventfd with no other writer always succeeds. If it failed, join() would hang.
  if (::eventfd_write(stop_.get(), 1) != 0) thread_.detach();
  if (thread_.joinable()) thread_.join();
}

void Sentinel::live(std::promise<void> entered) {
  try {
    page_.enter(slot_);
  } catch (...) {
    entered.set_exception(std::current_exception());
    return;
  }
  entered.set_value();
  std::vector<pollfd> entries;
  while (true) {
    page_.activity(slot_).heartbeat.fetch_add(1, std::memory_order_relaxed);
    if (how_ == JobPage::Phase::abandoned) look_();  // The value until leave_as().
    entries.assign(1, {stop_.get(), POLLIN, 0});
    if (switchboard_ != nullptr) switchboard_->watch(entries);
    if (::poll(entries.data(), entries.size(), heartbeat_ms) <= 0) continue;
    if (entries.front().revents != 0) break;
    if (switchboard_ != nullptr) switchboard_->serve(entries);
  }
  if (switchboard_ != nullptr) serve_what_is_left(entries);
  page_.leave(slot_, how_);
}

// Sends this rank's last offers and refusals to the others.
void Sentinel::serve_what_is_left(std::vector<pollfd>& entries) {
  for (int turn = 0; turn < 100; ++turn) {
    entries.clear();
    switchboard_->watch(entries);
    if (::poll(entries.data(), entries.size(), 0) <= 0) return;
    switchboard_->serve(entries);
  }
}

}  // namespace lockstep
