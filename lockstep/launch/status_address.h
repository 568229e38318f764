// The names of the sockets on which agents answer: lockstep/UID/agent/PID.N/JOB in the abstract
// namespace, where JOB is cut to what fits. N tells apart agents that have the same pid, in PID
// namespaces of their own.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cctype>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

namespace lockstep {

inline constexpr std::string_view status_root = "lockstep/";
inline constexpr std::string_view status_service = "/agent/";

// With this socket type, only `longest_status` limits a message's size.
inline constexpr int status_socket = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

// A longer answer does not come from an agent.
inline constexpr std::size_t longest_status = std::size_t{4} << 20;

struct StatusAddress {
  // `name` lacks the zero byte that makes it abstract, and is at most 100 bytes long.
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

// /proc/net/unix shows names unescaped: a job's id must not break its lines, nor ours.
inline std::string status_name_of_job(std::string_view job_id) {
  std::string name(job_id.substr(0, 48));
  for (char& each : name)
    if (std::isgraph(static_cast<unsigned char>(each)) == 0 || each == '/') each = '_';
  return name;
}

}  // namespace lockstep
