// Files of /proc and /sys, whose process may end while they are looked at.
//
// A process that has been reaped fails read() on its open files with ESRCH, which a stream's
// iterators throw as an exception. Here it is no error: there is nothing to read.
// Thread safety: all may be called from any thread. Blocking: no.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// All of a file; empty when it cannot be opened or read: its process is gone, or another user's.
LOCKSTEP_API std::optional<std::string> read_proc_file(const std::filesystem::path& file);

// The rest of a file that is open already.
LOCKSTEP_API std::optional<std::string> read_proc_file(int fd);

// The names in a folder, in no order: those that were listed before it vanished, or could not be
// read.
LOCKSTEP_API std::vector<std::string> names_in(const std::filesystem::path& folder);

// The processes that `proc` lists.
LOCKSTEP_API std::vector<pid_t> process_ids(const std::filesystem::path& proc = "/proc");

// A part of /proc/PID/stat; proc(5) says what each field means.
struct ProcessStat {
  char state = '?';  // Such as 'S', 'T' for a stopped process, 'Z' for one that has ended.
  pid_t parent = 0;
  std::optional<std::int64_t> started = {};  // In ticks since the host was booted. A pid may be
                                             // given to a second process, but with another time.
  std::optional<int> wait_status = {};       // As wait(2) has it; 0 before the process ends.
};

LOCKSTEP_API std::optional<ProcessStat> process_stat(pid_t pid,
                                                     const std::filesystem::path& proc = "/proc");

// Empty for a text that is not of that file.
LOCKSTEP_API std::optional<ProcessStat> parse_process_stat(std::string_view text);

// The program and its arguments, with a space between two; empty when it cannot be read.
LOCKSTEP_API std::string command_of(pid_t pid);

}  // namespace lockstep
