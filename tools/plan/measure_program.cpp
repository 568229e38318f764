// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/measure_program.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/temporary_folder.h"
#include "lockstep/base/text.h"
#include "lockstep/base/text_file.h"
#include "lockstep/launch/run.h"

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;

// Its stdout goes to our stderr. Returns a shell's exit code.
int run_command(std::vector<std::string> command) {
  std::vector<char*> arguments;
  for (std::string& each : command) arguments.push_back(each.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t child = 0;
  const int error =
      ::posix_spawn(&child, arguments.front(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    errno = error;
    throw_errno(command.front());
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) throw_errno("waitpid");
  constexpr int signal_code = 128;
  return WIFEXITED(status) ? WEXITSTATUS(status) : signal_code + WTERMSIG(status);
}

}  // namespace

std::variant<ModelProfile, NotMeasured> measure_program(const std::vector<std::string>& program,
                                                        int ranks) {
  if (const ProgramSearch search = find_program(program.front()); search.path.empty())
    return NotMeasured{search.exit_code, search.problem};
  const TemporaryFolder folder;
  const std::string file = folder.path() / "profile.json";
  const std::string launcher = fs::read_symlink("/proc/self/exe").parent_path() / "lockstep-run";
  ::setenv("LOCKSTEP_PLAN", file.c_str(), 1);
  std::vector<std::string> command{
      launcher, "-n", std::to_string(ranks), "--nnodes", "1", "--max-restarts", "0", "--"};
  command.insert(command.end(), program.begin(), program.end());
  const int code = run_command(std::move(command));
  ::unsetenv("LOCKSTEP_PLAN");
  if (code == 0 && fs::exists(file)) return read_profile(file);
  const std::string name = clean_text(program.front());
  if (code == 0)
    return NotMeasured{1, name +
                              " ended without measuring its model: it has to call "
                              "lockstep::plan_if_asked()"};
  return NotMeasured{code, name + " ended before it had measured its model, with exit code " +
                               std::to_string(code)};
}

ModelProfile read_profile(const std::string& file) {
  try {
    return parse_model_profile(read_file(file));
  } catch (const Error& error) {
    if (error.fault() != Fault::corrupt) throw;
    throw Error(Fault::corrupt, file + ": " + bare_text(error));
  }
}

}  // namespace lockstep::tools
