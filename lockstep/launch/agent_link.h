// One end of the connection between two launchers, after the handshake: frames both ways, and a
// pulse, by which each end knows within 3 s that the other one has stopped answering.
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

namespace lockstep {

class AgentLink {
 public:
  static constexpr std::chrono::milliseconds pulse{500};
  static constexpr std::chrono::milliseconds longest_silence = 6 * pulse;

  AgentLink(FileDescriptor socket, Clock::time_point now);

  void send(const AgentFrame& frame);

  void watch(std::vector<pollfd>& entries) const;

  // False when the other end has closed, or does not read.
  bool serve(const std::vector<pollfd>& entries, Clock::time_point now);

  // What came since. Errors: corrupt; the connection is of no use then.
  std::optional<AgentFrame> receive();

  // Gives a sign of life when it is time, and says until when there is nothing to do.
  void beat(Clock::time_point now);
  Deadline deadline() const;

  // Nothing came for so long that the other end counts as lost. forgive() begins the count anew,
  // for when it was we who did not look.
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

// Whether our own loop was stopped, such as by SIGSTOP, so that nobody's silence counts.
class OwnPulse {
 public:
  explicit OwnPulse(Clock::time_point now) : last_(now) {}

  // To be called at least once each AgentLink::pulse.
  bool missed(Clock::time_point now) {
    const bool late = now - last_ > AgentLink::pulse + std::chrono::seconds(1);
    last_ = now;
    return late;
  }

 private:
  Clock::time_point last_;
};

}  // namespace lockstep
