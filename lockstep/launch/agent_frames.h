// Frames between launchers: docs/protocol.md. A frame is its length (u32, little-endian) and a JSON
// object.
//
// Errors: corrupt for bytes that encoding never produces.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/job/straggler.h"
#include "lockstep/launch/coordinator.h"
#include "lockstep/launch/rendezvous.h"
#include "lockstep/launch/run.h"

namespace lockstep::launch {

// Launchers compare digests to detect two jobs at one endpoint. `program` and `arguments` are
// sanitised and cut.
struct JobCommand {
  static constexpr std::size_t most_arguments = 128;
  static constexpr std::size_t longest_argument = 128;  // Bytes.

  std::string program = {};  // Without its folder, which may differ.
  std::vector<std::string> arguments = {};
  std::string digest = {};  // SHA-256 of the uncut name and arguments.
};

JobCommand job_command(const RunOptions& options);

// Excerpts around the first difference: "`train ... --seed 1 ...`".
struct CommandDifference {
  std::string here;
  std::string there;
};

std::optional<CommandDifference> difference(const JobCommand& here, const JobCommand& there);

constexpr std::size_t max_agent_frame_bytes = std::size_t{64} << 10;

struct AliveFrame {};

// To the coordinating agent.
struct JoinFrame {
  Coordinator::JoiningNode node;
  std::optional<JobCommand> command = {};  // Empty from an older launcher.
};
struct ReportFrame {
  int attempt = -1;
  Outcome outcome = Outcome::succeeded;
  int exit_code = 0;
  std::optional<Failure> failure = {};
  std::vector<RankTimes> times = {};  // Only without a failure; at most 128 ranks.
};
struct AllGoneFrame {
  int attempt = 0;
};

// From the coordinating agent, besides orders.
struct StateFrame {
  std::string coordinator;
  std::string text;                    // Rendezvous::state() of the receiver.
  std::chrono::milliseconds pause{0};  // If not 0, also the order StartLater.
};

using AgentFrame = std::variant<AliveFrame, JoinFrame, ReportFrame, AllGoneFrame, StateFrame,
                                StartRanks, EndRanks, EndJob>;

// With the length. Sanitises and cuts texts and lists to keep every frame within the limit.
std::string encode(const AgentFrame& frame);

// Without the length; empty when more bytes are needed.
std::optional<std::string_view> first_agent_frame(std::string_view bytes);

// Sanitises and cuts again.
AgentFrame decode_agent_frame(std::string_view body);

}  // namespace lockstep::launch
