// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/port_holder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "lockstep/base/clean_text.h"
#include "lockstep/base/proc_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct Listener {
  std::string inode;
  std::string uid;
};

// Format of a line: number, local address:port in hex, remote, state, queues, timer, retransmits,
// uid, timeout, inode.
std::optional<Listener> find_listener(const char* table, int port) {
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);
  const std::string wanted = fmt::format(":{:04X}", port);
  while (std::getline(file, line)) {
    std::istringstream stream(line);
    std::string number, local, remote, state, queues, timer, retransmits, timeout;
    Listener listener;
    stream >> number >> local >> remote >> state >> queues >> timer >> retransmits >>
        listener.uid >> timeout >> listener.inode;
    if (stream && state == "0A" && local.ends_with(wanted)) return listener;
  }
  return std::nullopt;
}

bool holds(pid_t process, const std::string& socket) {
  const fs::path folder = fmt::format("/proc/{}/fd", process);
  const std::vector<std::string> descriptors = names_in(folder);
  return std::any_of(descriptors.begin(), descriptors.end(), [&](const std::string& descriptor) {
    std::error_code closed;
    return fs::read_symlink(folder / descriptor, closed) == socket;
  });
}

std::string shown_command(pid_t process) {
  constexpr std::size_t most = 120;
  const std::string command = command_of(process);
  return clean_text(command, most) + (command.size() > most ? "..." : "");
}

}  // namespace

std::string describe_port_holder(int port) {
  std::optional<Listener> listener = find_listener("/proc/net/tcp", port);
  if (!listener) listener = find_listener("/proc/net/tcp6", port);
  if (!listener) return "an unknown process";
  const std::string socket = fmt::format("socket:[{}]", listener->inode);
  for (const pid_t process : process_ids())
    if (holds(process, socket))
      return fmt::format("process {} ({})", process, shown_command(process));
  return fmt::format("a process of user {}", listener->uid);
}

}  // namespace lockstep
