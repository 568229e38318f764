// Reads this process, its host, and other processes from /proc and /sys.
//
// A process may end while its files are read: the result is then empty.
//
// Thread safety: full. Blocking: no.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// The whole file; empty if it cannot be read.
LOCKSTEP_API std::optional<std::string> read_proc_file(const std::filesystem::path& file);

// The rest of an open file.
LOCKSTEP_API std::optional<std::string> read_proc_file(int fd);

// A folder's names, unordered; after a read error or removal, those read so far.
LOCKSTEP_API std::vector<std::string> names_in(const std::filesystem::path& folder);

LOCKSTEP_API std::vector<pid_t> process_ids(const std::filesystem::path& proc = "/proc");

// Fields of /proc/PID/stat; see proc(5).
struct ProcessStat {
  char state = '?';  // 'S', 'T' (stopped), 'Z' (zombie), ...
  pid_t parent = 0;
  std::int64_t resident_bytes = 0;           // Includes shared memory.
  std::optional<std::int64_t> started = {};  // In ticks since boot; differs for a reused pid.
  std::optional<int> wait_status = {};       // As of wait(2) once it exits; 0 if hidden.
};

LOCKSTEP_API std::optional<ProcessStat> process_stat(pid_t pid,
                                                     const std::filesystem::path& proc = "/proc");

LOCKSTEP_API std::optional<ProcessStat> parse_process_stat(std::string_view text);

// The program and its arguments, separated by spaces; empty if unreadable.
LOCKSTEP_API std::string command_of(pid_t pid);

// getpid() at the cost of a load, to detect fork()ed copies in each collective. Correct in every
// child with its own memory (fork(), _Fork(), clone()); a child of vfork() gets its parent's pid.
LOCKSTEP_API pid_t this_process();

// The process that called connect(), listen() or socketpair() for a Unix socket's other end.
struct SocketPeer {
  pid_t process = 0;  // 0 if outside this process's pid namespace.
  uid_t user = 0;     // Effective.
};

// Empty if `socket` is not a socket. A TCP socket has process 0 and the invalid user
// static_cast<uid_t>(-1).
LOCKSTEP_API std::optional<SocketPeer> peer_of(int socket);

inline std::string host_name() {
  char name[65] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace lockstep
