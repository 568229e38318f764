// `lockstep status` reads a user's jobs from the abstract Unix sockets of their agents.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/job/job_control_block.h"
#include "lockstep/job/straggler.h"
#include "lockstep/launch/client_service.h"

namespace lockstep {

struct RankStatus {
  int rank = 0;
  int pid = 0;
  int incarnation = 0;  // Earlier starts in this attempt.
  // After a change of the group (ElasticGroup): the rank's number in it, and its size; otherwise -1
  // and 0.
  int group_rank = -1;
  int group_size = 0;
  std::string state = {};           // "starting", "running", "stopped", "waiting", "ended".
  std::vector<int> waits_for = {};  // Ranks yet to join its call, or a message's peer, if known.
  std::uint64_t step = 0;
  std::string last = {};  // describe(Activity); without a group, such as "has left its group".
  // In the last ten seconds: text of describe(StepTimes), each phase's share by name, and the rank
  // for which it waited longest. Empty and -1 without any.
  std::string phases = {};
  std::map<std::string, double> shares = {};
  int latest_rank = -1;
  double steps_per_second = 0;  // In the last ten seconds.
  // Since the first step, in seconds. `waited_for`, by rank, has only the longest waits.
  std::int64_t steps = 0;
  std::map<std::string, double> seconds = {};
  std::map<std::string, double> waited_for = {};
  double stood_still = 0;
  std::int64_t memory = 0;    // Resident bytes, including shared ones; 0 if unknown.
  std::string bound_to = {};  // CPUs, such as "0-3"; empty if not bound.
};

struct JobStatus {
  std::string job_id = {};
  std::string program = {};  // Includes its arguments.
  int agent_pid = 0;
  std::string host = {};
  int node = 0;
  int nodes = 1;
  int world_size = 1;
  int attempt = 0;
  int restarts = 0;                    // After failures.
  std::string state = {};              // Such as "running" or "host 1 of 2"; or no_answer.
  double seconds = 0;                  // Since the agent started.
  std::vector<RankStatus> ranks = {};  // Only this host's.
};

// State of a job whose agent does not respond: only job_id, program, agent_pid and host are known.
inline constexpr const char* no_answer = "does not answer";

// `first_rank`: the rank of slot 0. The pid is 0 if the rank has never taken its slot.
RankStatus status_of(const JobControlBlock& page, int slot, int first_rank = 0);

// As above, in a group with other numbers than in the job. `ranks`: by slot, the rank in the job,
// or -1 if unknown; waits_for and waited_for then omit it.
RankStatus status_of(const JobControlBlock& page, int slot, const std::vector<int>& ranks);

LOCKSTEP_API RankTimes times_of(const RankStatus& rank);

// "in all_reduce #2431 of group world for 0.1 s, waits for 0,2-3".
LOCKSTEP_API std::string describe(const RankStatus& rank);

// This user's jobs on this host, or every user's for root, oldest first; jobs without a response
// within a second are last. Blocking: up to a second.
LOCKSTEP_API std::vector<JobStatus> running_jobs();

LOCKSTEP_API std::string to_json(const std::vector<JobStatus>& jobs);

// From an agent to a client, whose version may differ: missing fields have their defaults.
std::string to_json_object(const JobStatus& job);

std::optional<JobStatus> job_status_in(const std::string& text);

// Sends the status to processes of the same user and of root. Thread safety, Blocking: as
// ClientService. Errors: system.
class StatusService final : public launch::ClientService {
 public:
  StatusService(const std::string& job_id, std::function<JobStatus()> status);

 private:
  bool welcome(Client& client) override;
  bool go_on(Client& client) override;

  const std::function<JobStatus()> status_;
};

// --- Addresses -----------------------------------------------------------------------------------

// Agents' sockets are lockstep/UID/agent/PID.N/JOB in the abstract namespace; JOB is cut to fit. N
// distinguishes equal pids in different PID namespaces.
inline constexpr std::string_view status_root = "lockstep/";
inline constexpr std::string_view status_service = "/agent/";

// With this socket type, only `longest_status` limits a message's size.
inline constexpr int status_socket = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

// Longer responses are not from agents.
inline constexpr std::size_t longest_status = std::size_t{4} << 20;

struct StatusAddress {
  // `name` has at most 100 bytes, without the leading zero byte.
  explicit StatusAddress(std::string_view name) {
    value.sun_family = AF_UNIX;
    name = name.substr(0, sizeof value.sun_path - 1);
    std::memcpy(value.sun_path + 1, name.data(), name.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }

  sockaddr_un value{};
  socklen_t length = 0;
};

// /proc/net/unix shows names unescaped: a job's id must not break its lines or our names.
inline std::string status_name_of_job(std::string_view job_id) {
  std::string name(job_id.substr(0, 48));
  for (char& each : name)
    if (std::isgraph(static_cast<unsigned char>(each)) == 0 || each == '/') each = '_';
  return name;
}

}  // namespace lockstep
