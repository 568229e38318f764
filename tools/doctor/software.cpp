// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/software.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/engine/engine.h"

extern char** environ;

namespace lockstep::doctor {
namespace {

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& each : texts) pointers.push_back(const_cast<char*>(each.c_str()));
  return pointers;
}

pid_t start(const std::vector<std::string>& arguments, const std::vector<std::string>& variables,
            int out) {
  std::vector<char*> pointers = pointers_to(arguments);
  pointers.push_back(nullptr);
  std::vector<char*> environment = pointers_to(variables);
  for (char** variable = environ; *variable != nullptr; ++variable)
    environment.push_back(*variable);
  environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  const int error =
      ::posix_spawn(&pid, pointers[0], &actions, nullptr, pointers.data(), environment.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw_errno("starting " + arguments[0], error);
  return pid;
}

// False if the deadline passed before the end of file.
bool read_all(int from, std::string& text, Deadline deadline) {
  std::array<char, 4096> buffer;
  while (true) {
    std::array<pollfd, 1> watched{pollfd{from, POLLIN, 0}};
    if (!poll_until(watched, deadline)) return false;
    const ssize_t count = ::read(from, buffer.data(), buffer.size());
    if (count <= 0) return true;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

std::string describe_end(int status) {
  if (WIFSIGNALED(status))
    return fmt::format("was ended by signal {} ({})", WTERMSIG(status),
                       ::strsignal(WTERMSIG(status)));
  if (WEXITSTATUS(status) != 0) return fmt::format("ended with exit code {}", WEXITSTATUS(status));
  return {};
}

namespace fs = std::filesystem;

struct Loaded {
  std::string loader;  // This program's ld.so.
  fs::path comm;       // liblockstep_comm.so.
};

int look_at(dl_phdr_info* object, std::size_t, void* result) {
  auto& loaded = *static_cast<Loaded*>(result);
  for (int i = 0; i < object->dlpi_phnum; ++i)
    if (object->dlpi_phdr[i].p_type == PT_INTERP && loaded.loader.empty())
      // ELF has the text's address as a number.
      loaded.loader = reinterpret_cast<const char*>(  // NOLINT(performance-no-int-to-ptr)
          object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
  const fs::path path = object->dlpi_name;
  if (path.filename().string().starts_with("liblockstep_comm.so")) loaded.comm = path;
  return 0;
}

Loaded what_is_loaded() {
  Loaded loaded;
  ::dl_iterate_phdr(look_at, &loaded);
  return loaded;
}

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

constexpr std::chrono::seconds time_for_an_answer{20};

EngineState open(const std::string& name) try {
  const Engine& engine = open_engine(name);
  return {.name = name, .path = engine.path, .version = engine.version};
} catch (const std::exception& error) {
  // The report has the engine's name.
  const std::string text = error.what();
  const std::string prefix = fmt::format("engine {}: ", name);
  const auto begin = text.find(prefix);
  return {.name = name, .why_not = begin == text.npos ? text : text.substr(begin + prefix.size())};
}

}  // namespace

Answer ask(const std::vector<std::string>& arguments, std::chrono::milliseconds limit,
           const std::vector<std::string>& variables) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("pipe");
  const FileDescriptor reading(ends[0]);
  FileDescriptor writing(ends[1]);
  const pid_t pid = start(arguments, variables, writing.get());
  writing = FileDescriptor();
  Answer answer;
  const bool ended = read_all(reading.get(), answer.out, in(limit));
  if (!ended) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  answer.end =
      ended ? describe_end(status) : fmt::format("did not end within {} s", limit.count() / 1000);
  return answer;
}

LibTorch examine_libtorch(const std::string& built_for, const std::string& library) {
  const fs::path path = what_is_loaded().comm.parent_path() / library;
  if (!fs::is_regular_file(path)) return {};  // An empty name results in the folder.
  const Answer answer = list_needed(path);
  LibTorch torch = libtorch_in(answer.out, built_for);
  if (torch.path.empty() && torch.error.empty())
    torch.error = fmt::format("the loader does not list what {} needs{}{}", path.string(),
                              answer.end.empty() ? "" : ": it ", answer.end);
  if (torch.path.empty()) return torch;
  torch.version = version_of_libtorch(torch.path);
  torch.is_for_cuda = fs::exists(fs::path(torch.path).replace_filename("libtorch_cuda.so"));
  torch.has_driver = fs::exists("/dev/nvidiactl");
  return torch;
}

Answer list_needed(const fs::path& library) {
  return ask({what_is_loaded().loader, library.string()}, std::chrono::seconds(10),
             {"LD_TRACE_LOADED_OBJECTS=1"});
}

LibTorch libtorch_in(const std::string& list, const std::string& built_for) {
  LibTorch torch{.built_for = built_for};
  std::istringstream lines(list);
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view arrow = " => ";
    const auto begin = line.find_first_not_of(" \t");
    const auto middle = line.find(arrow);
    if (begin == line.npos || middle == line.npos) continue;
    const std::string name = line.substr(begin, middle - begin);
    const std::string where = line.substr(middle + arrow.size());
    if (where == "not found")
      torch.error += (torch.error.empty() ? "there is no " : ", ") + name;
    else if (name == "libtorch_cpu.so")
      torch.path = where.substr(0, where.rfind(" ("));
  }
  return torch;
}

std::string version_of_libtorch(const fs::path& libtorch_cpu) {
  const fs::path folder = libtorch_cpu.parent_path().parent_path();
  if (std::string version = first_line(folder / "build-version"); !version.empty()) return version;
  std::ifstream in(folder / "version.py");
  for (std::string line; std::getline(in, line);) {
    constexpr std::string_view key = "__version__ = '";
    if (!line.starts_with(key)) continue;
    return line.substr(key.size(), line.find('\'', key.size()) - key.size());
  }
  return {};
}

std::vector<EngineState> examine_engines(const std::string& program) {
  std::vector<EngineState> engines;
  for (const std::string_view each : engine_names()) {
    const std::string name(each);
    const Answer answer = ask({program, "--engine", name}, time_for_an_answer);
    engines.push_back(engine_in(name, answer.out, answer.end));
  }
  return engines;
}

void report_engine(const std::string& name) {
  // Libraries may print to stdout.
  const FileDescriptor out(::dup(STDOUT_FILENO));
  if (!out || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) throw_errno("dup");
  const EngineState engine = open(name);
  const nlohmann::json object{
      {"path", engine.path}, {"version", engine.version}, {"why_not", engine.why_not}};
  const std::string text =
      object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const ssize_t written = ::write(out.get(), text.data(), text.size());
  // Libraries' destructors may crash, and are not needed.
  ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
}

EngineState engine_in(const std::string& name, const std::string& written, const std::string& end) {
  const auto object = nlohmann::json::parse(written, nullptr, /*allow_exceptions=*/false);
  const auto text = [&](const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (!object.is_object())
    return {
        .name = name,
        .why_not = fmt::format("a process that opens it {}", end.empty() ? "says nothing" : end)};
  return {
      .name = name, .path = text("path"), .version = text("version"), .why_not = text("why_not")};
}

}  // namespace lockstep::doctor
