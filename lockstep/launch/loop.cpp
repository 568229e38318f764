// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/loop.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::launch {
namespace {

// timeout(1), systemd and others signal both a process and its group.
constexpr std::chrono::milliseconds double_signal{50};

}  // namespace

std::vector<pollfd> next_events(const std::vector<Pollable*>& parts, Deadline limit) {
  std::vector<pollfd> entries;
  for (const Pollable* part : parts) {
    part->watch(entries);
    limit = std::min(limit, part->deadline());
  }
  if (::poll(entries.data(), entries.size(), milliseconds_until(limit)) < 0 && errno != EINTR)
    throw_errno("poll");
  return entries;
}

Signals::Signals(const sigset_t& blocked, std::function<void(int signal)> act)
    : descriptor_(::signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK)), act_(std::move(act)) {
  if (!descriptor_) throw_errno("signalfd");
}

void Signals::watch(std::vector<pollfd>& entries) const {
  entries.push_back({descriptor_.get(), POLLIN, 0});
}

void Signals::serve(const std::vector<pollfd>& entries) {
  if (events_of(entries, descriptor_.get()) == 0) return;
  signalfd_siginfo info{};
  while (::read(descriptor_.get(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD || !is_double(signal)) act_(signal);
  }
}

bool Signals::is_double(int signal) {
  const auto now = Clock::now();
  const bool is_double = signal == last_ && now - last_at_ < double_signal;
  last_ = signal;
  last_at_ = now;
  return is_double;
}

}  // namespace lockstep::launch
