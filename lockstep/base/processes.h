// Reads this process, its host, and other processes from /proc and /sys.
//
// A process may end while its files are read. Reading a file of a reaped process fails with ESRCH,
// which a stream's iterators throw as an exception. Here it is not an error: the result is empty.
//
// Thread safety: any thread may call any function. Blocking: no.

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

// Returns the whole file; empty when it cannot be opened or read, because its process has ended or
// belongs to another user.
LOCKSTEP_API std::optional<std::string> read_proc_file(const std::filesystem::path& file);

// Returns the rest of an open file.
LOCKSTEP_API std::optional<std::string> read_proc_file(int fd);

// Returns the names in a folder, unordered. If the folder is removed or fails meanwhile, returns
// the names read so far.
LOCKSTEP_API std::vector<std::string> names_in(const std::filesystem::path& folder);

// Returns the processes that `proc` lists.
LOCKSTEP_API std::vector<pid_t> process_ids(const std::filesystem::path& proc = "/proc");

// Selected fields of /proc/PID/stat; see proc(5).
struct ProcessStat {
  char state = '?';  // For example 'S', 'T' (stopped), 'Z' (zombie).
  pid_t parent = 0;
  std::int64_t resident_bytes = 0;           // Includes memory shared with others.
  std::optional<std::int64_t> started = {};  // Start time in ticks since boot. A reused pid has
                                             // another start time.
  std::optional<int> wait_status = {};       // Exit status in the form of wait(2); 0 before the
                                             // process ends.
};

LOCKSTEP_API std::optional<ProcessStat> process_stat(pid_t pid,
                                                     const std::filesystem::path& proc = "/proc");

// Returns nothing if `text` does not have that file's format.
LOCKSTEP_API std::optional<ProcessStat> parse_process_stat(std::string_view text);

// Returns the program and its arguments, separated by spaces; empty if unreadable.
LOCKSTEP_API std::string command_of(pid_t pid);

// Returns getpid() at the cost of a load, to detect fork()ed copies of a process. A system call
// would cost half as much as the rest of a collective. It is correct in every child with its own
// memory, made by fork(), _Fork() or clone(). A child of vfork() shares its parent's memory and
// gets its parent's pid.
LOCKSTEP_API pid_t this_process();

// The process that called connect(), listen() or socketpair() for the other end of a Unix socket.
struct SocketPeer {
  pid_t process = 0;  // 0 if it is outside this process's pid namespace.
  uid_t user = 0;     // The effective user.
};

// Returns nothing if `socket` is not a socket. For a TCP socket, returns process 0 and the invalid
// user static_cast<uid_t>(-1).
LOCKSTEP_API std::optional<SocketPeer> peer_of(int socket);

// Returns this host's name, for messages.
inline std::string host_name() {
  char name[65] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace lockstep
