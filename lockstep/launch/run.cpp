// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/run.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/job/store/tcp_store.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/interpreter.h"
#include "lockstep/launch/rendezvous.h"

namespace lockstep {
namespace {

std::optional<int> number_in(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

std::optional<Streams> streams_in(std::string_view text) {
  const std::optional<int> number = number_in(text);
  if (text.size() != 1 || !number || *number > 3) return std::nullopt;
  return static_cast<Streams>(*number);
}

// An errno; 0 if `path` can be executed.
int why_not_executable(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return errno;
  if (S_ISDIR(status.st_mode)) return EISDIR;
  if (!S_ISREG(status.st_mode)) return EACCES;
  return ::access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

bool is_absence(int error_number) { return error_number == ENOENT || error_number == ENOTDIR; }

ProgramSearch refusal(const std::string& path, int error_number) {
  if (error_number == EISDIR)
    return {.path = {},
            .problem = fmt::format("{} is a folder, not a program: name a program in it", path),
            .exit_code = exit_usage};
  const bool is_script = error_number == EACCES && path.ends_with(".py");
  return {.path = {},
          .problem = fmt::format("{} cannot be executed: {}{}", path, std::strerror(error_number),
                                 is_script ? "; put `python3` before it" : ""),
          .exit_code = is_absence(error_number) ? 127 : 126};
}

// The kernel reports a missing interpreter like a missing program.
ProgramSearch with_interpreter(const std::string& path) {
  const std::string interpreter = launch::interpreter_of(path);
  const bool is_there = interpreter.empty() || ::access(interpreter.c_str(), F_OK) == 0;
  if (is_there) return {.path = path, .problem = {}};
  const char* const hint = interpreter.ends_with('\r')
                               ? "; its first line ends with a carriage return, as on Windows"
                               : "";
  return {.path = {},
          .problem = fmt::format("{}: its interpreter {} does not exist{}", path,
                                 clean_text(interpreter), hint),
          .exit_code = exit_not_found};
}

std::string hint_of_this_folder(const std::string& name) {
  const int problem = name.empty() ? ENOENT : why_not_executable("./" + name);
  if (problem == 0) return fmt::format("; did you mean ./{}?", name);
  if (problem != EACCES) return {};
  if (name.ends_with(".py")) return fmt::format("; did you mean python3 {}?", name);
  return fmt::format("; ./{} is there, but is not executable: chmod +x it", name);
}

}  // namespace

Streams StreamChoice::of(int local_rank) const {
  const auto own = of_local_rank.find(local_rank);
  return own != of_local_rank.end() ? own->second : all;
}

StreamChoice parse_streams(std::string_view text) {
  if (const auto all = streams_in(text)) return {.all = *all};
  const auto wrong = [&](std::string_view why) {
    return Error(Fault::misuse,
                 fmt::format("streams are 0 to 3 (1 stdout, 2 stderr, 3 both), or a list by local "
                             "rank, as 0:1,1:2; {} in '{}'",
                             why, text));
  };
  StreamChoice choice;
  for (std::string_view rest = text;;) {
    const auto comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const auto colon = item.find(':');
    if (colon == item.npos) throw wrong(fmt::format("'{}' is neither", item));
    const auto local_rank = number_in(item.substr(0, colon));
    const auto streams = streams_in(item.substr(colon + 1));
    if (!local_rank || !streams) throw wrong(fmt::format("'{}' is neither", item));
    if (!choice.of_local_rank.emplace(*local_rank, *streams).second)
      throw wrong(fmt::format("local rank {} is there twice", *local_rank));
    if (comma == rest.npos) return choice;
    rest.remove_prefix(comma + 1);
  }
}

ProgramSearch find_program(const std::string& name) {
  if (name.find('/') != name.npos || name == "." || name == "..") {
    const int problem = why_not_executable(name);
    return problem == 0 ? with_interpreter(name) : refusal(name, problem);
  }
  ProgramSearch found{.path = {}, .problem = name + ": not found in PATH", .exit_code = 127};
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/bin:/usr/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    const int problem = name.empty() ? ENOENT : why_not_executable(candidate);
    if (problem == 0) return with_interpreter(candidate);
    if (!is_absence(problem)) found = refusal(candidate, problem);
  }
  if (found.exit_code == exit_not_found) found.problem += hint_of_this_folder(name);
  return found;
}

}  // namespace lockstep
