// The agent's poll() loop and its components.
//
// Thread safety: none; the components belong to the loop's thread. Blocking: next_events() only.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"

namespace lockstep::launch {

class Pollable {
 public:
  virtual ~Pollable() = default;

  virtual void watch(std::vector<pollfd>& entries) const = 0;

  // Latest time of the next serve().
  virtual Deadline deadline() const = 0;

  // Handles deadlines and poll()'s results, ignoring those of other components (see events_of()).
  virtual void serve(const std::vector<pollfd>& entries) = 0;
};

// Waits for an event, a deadline or a signal, until `limit`. Errors: system.
std::vector<pollfd> next_events(const std::vector<Pollable*>& parts, Deadline limit = no_deadline);

class Signals final : public Pollable {
 public:
  // The caller has blocked the signals `blocked`. serve() calls `act` for each one that arrives,
  // but not for a repetition within 50 ms. Errors: system.
  Signals(const sigset_t& blocked, std::function<void(int signal)> act);

  void watch(std::vector<pollfd>& entries) const override;
  Deadline deadline() const override { return no_deadline; }
  void serve(const std::vector<pollfd>& entries) override;

 private:
  bool is_double(int signal);

  const FileDescriptor descriptor_;
  const std::function<void(int signal)> act_;
  int last_ = 0;  // The latest signal except SIGCHLD.
  Clock::time_point last_at_ = {};
};

// Detects the end of the process that holds a pipe's other end.
class Lifeline final : public Pollable {
 public:
  explicit Lifeline(int pipe) : pipe_(pipe) {}

  bool is_cut() const { return is_cut_; }

  void watch(std::vector<pollfd>& entries) const override { entries.push_back({pipe_, POLLIN, 0}); }
  Deadline deadline() const override { return no_deadline; }
  void serve(const std::vector<pollfd>& entries) override {
    if (events_of(entries, pipe_) != 0) is_cut_ = true;
  }

 private:
  const int pipe_;
  bool is_cut_ = false;
};

// Calls `act` after `patience`, then at growing intervals.
class Reminder final : public Pollable {
 public:
  Reminder(std::chrono::milliseconds patience, std::function<void()> act)
      : pause_(patience), due_(in(patience)), act_(std::move(act)) {}

  void watch(std::vector<pollfd>& /*entries*/) const override {}
  Deadline deadline() const override { return due_; }
  void serve(const std::vector<pollfd>& /*entries*/) override {
    if (Clock::now() < due_) return;
    act_();
    pause_ *= 2;
    due_ = in(pause_);
  }

 private:
  std::chrono::milliseconds pause_;
  Deadline due_;
  const std::function<void()> act_;
};

}  // namespace lockstep::launch
