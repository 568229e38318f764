// The connection between two launchers after the handshake, with heartbeats. Each end detects
// within 3 s that the other does not respond.
//
// Thread safety: none. Blocking: never.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"
#include "lockstep/launch/agent_frames.h"

namespace lockstep::launch {

class AgentLink {
 public:
  static constexpr std::chrono::milliseconds pulse{500};
  static constexpr std::chrono::milliseconds longest_silence = 6 * pulse;

  AgentLink(FileDescriptor socket, Clock::time_point now);

  void send(const AgentFrame& frame);

  void watch(std::vector<pollfd>& entries) const;

  // False when the other end has closed or does not read.
  bool serve(const std::vector<pollfd>& entries, Clock::time_point now);

  // Errors: corrupt; the connection is then unusable.
  std::optional<AgentFrame> receive();

  // Sends a heartbeat if deadline() has passed and nothing is pending().
  void beat(Clock::time_point now);
  Deadline deadline() const;

  // Call forgive() after this process itself was stopped.
  bool silent(Clock::time_point now) const { return now - heard_ >= longest_silence; }
  void forgive(Clock::time_point now) { heard_ = now; }

  bool pending() const { return !output_.empty(); }
  int socket() const { return socket_.get(); }

 private:
  bool write();

  FileDescriptor socket_;
  std::string input_;
  std::string output_;
  bool broken_ = false;
  Clock::time_point heard_;
  Clock::time_point beat_at_;
};

// Detects that this process was stopped, as by SIGSTOP: its peers' silence then does not count.
class OwnPulse {
 public:
  explicit OwnPulse(Clock::time_point now) : last_(now) {}

  // Call it at least once per AgentLink::pulse.
  bool missed(Clock::time_point now) {
    const bool late = now - last_ > AgentLink::pulse + std::chrono::seconds(1);
    last_ = now;
    return late;
  }

 private:
  Clock::time_point last_;
};

}  // namespace lockstep::launch
