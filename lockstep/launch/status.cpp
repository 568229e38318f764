// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/status.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/processes.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds time_to_answer = 1s;
constexpr int backlog = 16;

FileDescriptor listen_as(const std::string& job_id) {
  FileDescriptor listener(::socket(AF_UNIX, status_socket, 0));
  if (!listener) throw_errno("making a Unix socket");
  for (int n = 0;; ++n) {
    const StatusAddress address(fmt::format("{}{}{}{}.{}/{}", status_root, ::geteuid(),
                                            status_service, ::getpid(), n,
                                            status_name_of_job(job_id)));
    if (::bind(listener.get(), address.get(), address.length) == 0) break;
    if (errno != EADDRINUSE) throw_errno("binding an abstract Unix socket");
  }
  if (::listen(listener.get(), backlog) != 0) throw_errno("listening on a Unix socket");
  return listener;
}

bool may_ask(const FileDescriptor& socket) {
  const auto peer = peer_of(socket.get());
  return peer && (peer->user == ::geteuid() || peer->user == 0);
}

// Parts of lockstep/UID/agent/PID.N/JOB.
struct AgentName {
  unsigned user = 0;
  int pid = 0;
  std::string job_id;
};

std::optional<AgentName> parse(const std::string& name) {
  AgentName agent;
  int number = 0;
  int length = 0;
  if (std::sscanf(name.c_str(), "lockstep/%u/agent/%d.%d/%n", &agent.user, &agent.pid, &number,
                  &length) != 3 ||
      length == 0)
    return std::nullopt;
  agent.job_id = name.substr(static_cast<std::size_t>(length));
  return agent;
}

struct Asked {
  AgentName name;
  FileDescriptor socket;  // Empty after the response or a failure.
  std::string answer = {};
  bool ended = false;
};

// Accepted sockets have the same names.
std::vector<std::string> listening_names() {
  constexpr const char* listening = "00010000";  // __SO_ACCEPTCON
  std::ifstream table("/proc/self/net/unix");
  std::vector<std::string> names;
  for (std::string line; std::getline(table, line);) {
    std::istringstream text(line);
    const std::vector<std::string> fields{std::istream_iterator<std::string>(text), {}};
    if (fields.size() == 8 && fields[3] == listening && fields[7].starts_with('@'))
      names.push_back(fields[7].substr(1));
  }
  return names;
}

// Any user may listen under any name: the listener's user must be the name's.
bool is_of_user(const Asked& agent) {
  const auto peer = peer_of(agent.socket.get());
  return peer && peer->user == agent.name.user;
}

// Empty if the agent belongs to another user, or has ended.
std::optional<Asked> ask(const std::string& address_name) {
  const auto name = parse(address_name);
  if (!name || (name->user != ::geteuid() && ::geteuid() != 0)) return std::nullopt;
  Asked agent{*name, FileDescriptor(::socket(AF_UNIX, status_socket, 0))};
  if (!agent.socket) throw_errno("making a Unix socket");
  const StatusAddress address(address_name);
  if (::connect(agent.socket.get(), address.get(), address.length) != 0) {
    if (errno != EAGAIN) return std::nullopt;
    agent.socket = FileDescriptor();  // Its queue is full, so it is stuck.
    return agent;
  }
  return is_of_user(agent) ? std::optional(std::move(agent)) : std::nullopt;
}

void read(Asked& agent) {
  std::array<char, 16 * 1024> buffer;
  const ssize_t length = ::read(agent.socket.get(), buffer.data(), buffer.size());
  if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (length > 0) agent.answer.append(buffer.data(), static_cast<std::size_t>(length));
  if (length > 0 && agent.answer.size() <= longest_status) return;
  agent.ended = agent.answer.empty() && ::kill(agent.name.pid, 0) != 0 && errno == ESRCH;
  const FileDescriptor closed = std::move(agent.socket);
}

void read_answers(std::vector<Asked>& agents) {
  const Deadline deadline = in(time_to_answer);
  while (true) {
    std::vector<pollfd> entries;
    for (const Asked& agent : agents)  // poll() skips -1.
      entries.push_back({agent.socket.get(), POLLIN, 0});
    const auto left =
        std::max(0ms, std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()));
    const bool open = std::any_of(agents.begin(), agents.end(),
                                  [](const Asked& agent) { return bool(agent.socket); });
    if (!open) return;
    const int ready = ::poll(entries.data(), entries.size(), static_cast<int>(left.count()));
    if (ready < 0 && errno != EINTR) throw_errno("poll");
    if (ready <= 0 && left == 0ms)
      return;  // Answers that came while this process stood still count.
    for (std::size_t i = 0; i < agents.size(); ++i)
      if (entries[i].revents != 0) read(agents[i]);
  }
}

JobStatus status_of(const Asked& agent) {
  if (const auto status = agent.socket ? std::nullopt : job_status_in(agent.answer)) return *status;
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return {.job_id = agent.name.job_id,
          .program = command_of(agent.name.pid),
          .agent_pid = agent.name.pid,
          .host = host.data(),
          .state = no_answer};
}

}  // namespace

StatusService::StatusService(const std::string& job_id, std::function<JobStatus()> status)
    : ClientService(listen_as(job_id)), status_(std::move(status)) {}

bool StatusService::welcome(Client& client) {
  if (!may_ask(client.socket)) return false;
  client.rest = to_json_object(status_());
  return go_on(client);  // The kernel keeps sent data until it is read.
}

bool StatusService::go_on(Client& client) { return send_rest(client) && !client.rest.empty(); }

std::vector<JobStatus> running_jobs() {
  std::vector<Asked> agents;
  for (const std::string& name : listening_names())
    if (auto asked = ask(name)) agents.push_back(std::move(*asked));
  read_answers(agents);
  std::vector<JobStatus> jobs;
  for (const Asked& agent : agents)
    if (!agent.ended) jobs.push_back(status_of(agent));
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const JobStatus& a, const JobStatus& b) { return a.seconds > b.seconds; });
  return jobs;
}

}  // namespace lockstep
