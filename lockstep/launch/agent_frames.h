// What the launchers of a job's hosts say to each other, after the handshake. docs/protocol.md.
//
// A frame is its length u32, little-endian, and a JSON object. No I/O and no state here.
// Errors: corrupt for bytes that encoding never makes.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "lockstep/base/error.h"
#include "lockstep/launch/coordinator.h"
#include "lockstep/launch/job_command.h"
#include "lockstep/launch/rendezvous.h"

namespace lockstep {

constexpr std::size_t max_agent_frame_bytes = std::size_t{64} << 10;

struct AliveFrame {};  // In both directions, when there is nothing else to say.

// To the coordinating agent.
struct JoinFrame {
  Coordinator::Newcomer newcomer;
  std::optional<JobCommand> command = {};  // Empty from a launcher that is too old to say it.
};
struct ReportFrame {
  int attempt = -1;
  Outcome outcome = Outcome::succeeded;
  int exit_code = 0;
  std::optional<Failure> failure = {};
};
struct AllGoneFrame {
  int attempt = 0;
};

// From it, beside the orders.
struct StateFrame {
  std::string coordinator;             // The host that it runs on.
  std::string text;                    // Rendezvous::state() of whoever gets this.
  std::chrono::milliseconds pause{0};  // Not 0: also the order StartLater.
};

using AgentFrame = std::variant<AliveFrame, JoinFrame, ReportFrame, AllGoneFrame, StateFrame,
                                StartRanks, EndRanks, EndJob>;

// With its length in front. Texts are cleaned and cut, so that every frame is within the limit.
std::string encode(const AgentFrame& frame);

// What follows the length of the first frame in `bytes`; empty when more bytes are needed.
std::optional<std::string_view> first_agent_frame(std::string_view bytes);

// Its texts are clean and cut, whoever wrote them.
AgentFrame decode_agent_frame(std::string_view body);

}  // namespace lockstep
