// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/program.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace lockstep {
namespace {

// Returns 0 when `path` can be executed, else the errno.
int why_not_executable(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return errno;
  if (S_ISDIR(status.st_mode)) return EISDIR;
  if (!S_ISREG(status.st_mode)) return EACCES;
  return ::access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

bool is_absence(int error_number) { return error_number == ENOENT || error_number == ENOTDIR; }

ProgramSearch refusal(const std::string& path, int error_number) {
  return {.path = {},
          .problem = fmt::format("{}: {}", path, std::strerror(error_number)),
          .exit_code = is_absence(error_number) ? 127 : 126};
}

}  // namespace

ProgramSearch find_program(const std::string& name) {
  if (name.find('/') != name.npos) {
    const int problem = why_not_executable(name);
    return problem == 0 ? ProgramSearch{.path = name, .problem = {}} : refusal(name, problem);
  }
  ProgramSearch found{.path = {}, .problem = name + ": not found in PATH", .exit_code = 127};
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/bin:/usr/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    const int problem = name.empty() ? ENOENT : why_not_executable(candidate);
    if (problem == 0) return {.path = candidate, .problem = {}};
    if (!is_absence(problem)) found = refusal(candidate, problem);
  }
  if (found.exit_code == 127 && !name.empty() && why_not_executable("./" + name) == 0)
    found.problem += fmt::format("; did you mean ./{}?", name);
  return found;
}

}  // namespace lockstep
