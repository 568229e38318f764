// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/store/port_holder.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct Listener {
  std::string inode;
  std::string uid;
};

// A line is: number, local address:port in hex, remote, state, queues, timer, retransmits, uid,
// timeout, inode.
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

bool holds(const fs::path& process, const std::string& socket) {
  std::error_code gone;  // The process may end, or belong to another user.
  fs::directory_iterator entry(process / "fd", gone);
  for (; !gone && entry != fs::directory_iterator(); entry.increment(gone))
    if (std::error_code closed; fs::read_symlink(entry->path(), closed) == socket) return true;
  return false;
}

std::string command_of(const fs::path& process) {
  std::ifstream file(process / "cmdline", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  while (text.ends_with('\0')) text.pop_back();
  for (char& c : text)
    if (c < ' ' || c > '~') c = c == '\0' ? ' ' : '?';
  return text.size() > 120 ? text.substr(0, 120) + "..." : text;
}

}  // namespace

std::string describe_port_holder(int port) {
  std::optional<Listener> listener = find_listener("/proc/net/tcp", port);
  if (!listener) listener = find_listener("/proc/net/tcp6", port);
  if (!listener) return "an unknown process";
  const std::string socket = fmt::format("socket:[{}]", listener->inode);
  std::error_code failed;
  fs::directory_iterator entry("/proc", failed);
  for (; !failed && entry != fs::directory_iterator(); entry.increment(failed)) {
    const std::string name = entry->path().filename();
    if (name.find_first_not_of("0123456789") != name.npos || !holds(entry->path(), socket))
      continue;
    return fmt::format("process {} ({})", name, command_of(entry->path()));
  }
  return fmt::format("a process of user {}", listener->uid);
}

}  // namespace lockstep
