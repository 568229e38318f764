// The frames between the launchers of a job's hosts, after the handshake. docs/protocol.md.
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
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/job/straggler.h"
#include "lockstep/launch/coordinator.h"
#include "lockstep/launch/rendezvous.h"
#include "lockstep/launch/run.h"

namespace lockstep::launch {

// The command that a launcher runs. Launchers send it to each other, and so notice when two jobs
// use the same endpoint.
//
// Hosts run the same command if the digests are equal. The other texts are sanitised and cut, for
// messages.
struct JobCommand {
  static constexpr std::size_t most_arguments = 128;
  static constexpr std::size_t longest_argument = 128;  // Bytes.

  std::string program = {};                 // File name only: the folder may differ between hosts.
  std::vector<std::string> arguments = {};  // First arguments of the program.
  std::string digest = {};                  // SHA-256 of that name and of all arguments, uncut.
};

JobCommand job_command(const RunOptions& options);

// Words of two commands around the first difference: "`train ... --seed 1 ...`".
struct CommandDifference {
  std::string here;
  std::string there;
};

// Returns nothing when both are the same.
std::optional<CommandDifference> difference(const JobCommand& here, const JobCommand& there);

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
  std::vector<RankTimes> times = {};  // Sent without a failure only; of 128 ranks at most.
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

// With its length in front. Texts are cleaned and cut, as are lists, so that every frame is within
// the limit.
std::string encode(const AgentFrame& frame);

// The first frame in `bytes` without its length; empty when more bytes are needed.
std::optional<std::string_view> first_agent_frame(std::string_view bytes);

// Its texts and lists are clean and cut, whoever wrote them.
AgentFrame decode_agent_frame(std::string_view body);

}  // namespace lockstep::launch
