// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/fetch_command.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/text.h"
#include "lockstep/base/time.h"

namespace lockstep::datasets {
namespace {

constexpr auto watch_slice = std::chrono::milliseconds(20);
constexpr auto grace = std::chrono::seconds(1);  // From SIGTERM to SIGKILL.
constexpr std::size_t most_printed = 2048;       // The output's end, in a message.
constexpr int reads_of_full_pipe = 16;           // Each reads 4 KB.

void replace_all(std::string& text, std::string_view name, const std::string& value) {
  for (std::size_t at = text.find(name); at != text.npos; at = text.find(name, at + value.size()))
    text.replace(at, name.size(), value);
}

// In one pass: a URL may contain "{path}".
std::string filled_in(const std::string& text, const std::string& url, const std::string& path) {
  std::string filled;
  for (std::size_t at = 0; at < text.size();) {
    if (text.compare(at, 5, "{url}") == 0) {
      filled += url;
      at += 5;
    } else if (text.compare(at, 6, "{path}") == 0) {
      filled += path;
      at += 6;
    } else {
      filled += text[at++];
    }
  }
  return filled;
}

std::string in_quotes(std::string text) {
  replace_all(text, "'", "'\\''");
  return "'" + text + "'";
}

// A process group whose output is a pipe.
class FetchProcess {
 public:
  explicit FetchProcess(std::vector<std::string> words);
  ~FetchProcess();
  FetchProcess(const FetchProcess&) = delete;
  FetchProcess& operator=(const FetchProcess&) = delete;

  // From waitpid(); nothing while running.
  std::optional<int> status();
  const std::string& printed() const { return printed_; }

 private:
  bool has_ended() const;  // Does not reap it.
  void read_output();

  FileDescriptor output_;
  std::string printed_;
  pid_t pid_ = 0;
  std::optional<int> status_;
};

FetchProcess::FetchProcess(std::vector<std::string> words) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno("pipe2");
  output_ = FileDescriptor(ends[0]);
  const FileDescriptor input(ends[1]);
  // Only this end: programs treat EAGAIN on output as an error.
  if (::fcntl(output_.get(), F_SETFL, O_NONBLOCK) != 0) throw_errno("fcntl");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, input.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, input.get(), STDERR_FILENO);
  // A child would inherit both: threads here block all signals.
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(
      &attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  const int error =
      ::posix_spawnp(&pid_, arguments.front(), &actions, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw_errno("starting " + words.front(), error);
}

FetchProcess::~FetchProcess() {
  if (status()) return;
  ::kill(-pid_, SIGTERM);
  for (const Deadline end = in(grace); !has_ended() && Clock::now() < end;)
    std::this_thread::sleep_for(watch_slice);
  // The command may have exited before its children. Its process group's id is not reused until it
  // is reaped.
  ::kill(-pid_, SIGKILL);
  int ignored = 0;
  while (::waitpid(pid_, &ignored, 0) < 0 && errno == EINTR) {
  }
}

std::optional<int> FetchProcess::status() {
  if (status_) return status_;
  int status = 0;
  const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
  // Programs that ignore SIGCHLD lose the status of children.
  if (ended == pid_ || (ended < 0 && errno != EINTR)) status_ = ended == pid_ ? status : 0;
  read_output();
  return status_;
}

bool FetchProcess::has_ended() const {
  siginfo_t end{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &end, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         end.si_pid != 0;
}

// Returns even if the command prints endlessly: the caller has a deadline.
void FetchProcess::read_output() {
  std::array<char, 4096> bytes{};
  for (int reads = 0; reads < reads_of_full_pipe; ++reads) {
    const ssize_t got = ::read(output_.get(), bytes.data(), bytes.size());
    if (got <= 0) return;
    printed_.append(bytes.data(), static_cast<std::size_t>(got));
    if (printed_.size() > most_printed) printed_.erase(0, printed_.size() - most_printed);
  }
}

std::string end_of_fetch(int status) {
  if (WIFEXITED(status)) return "ended with exit code " + std::to_string(WEXITSTATUS(status));
  return "was killed by signal " + std::to_string(WTERMSIG(status));
}

}  // namespace

FetchCommand::FetchCommand(std::string text, bool shell, std::chrono::milliseconds timeout)
    : text_(std::move(text)), shell_(shell), timeout_(timeout) {
  // Without {url}, all shards would be one file's copies.
  for (const char* name : {"{url}", "{path}"})
    require(text_.find(name) != text_.npos, [&] {
      return "the fetch command '" + text_ + "' does not have " + name +
             ": it copies the shard {url} to the file {path}";
    });
  require(timeout_.count() > 0, "TarShardsOptions::fetch_timeout must be positive");
}

std::vector<std::string> FetchCommand::words(const std::string& url,
                                             const std::string& path) const {
  if (shell_) return {"/bin/sh", "-c", filled_in(text_, in_quotes(url), in_quotes(path))};
  std::vector<std::string> found;
  std::istringstream words(text_);
  for (std::string word; words >> word;) found.push_back(filled_in(word, url, path));
  return found;
}

void FetchCommand::run(const std::string& url, const std::string& path,
                       const std::function<bool()>& is_stopped) const {
  const Deadline deadline = in(timeout_);
  FetchProcess process(words(url, path));
  const auto fail = [&](Fault fault, const std::string& what) {
    std::string text = "'" + text_ + "' " + what;
    if (!process.printed().empty()) text += ": " + clean_text(process.printed());
    throw Error(fault, text);
  };
  while (!process.status()) {
    if (is_stopped()) fail(Fault::aborted, "was stopped");
    if (Clock::now() >= deadline)
      fail(Fault::timeout, "took longer than " + std::to_string(timeout_.count()) + " ms");
    std::this_thread::sleep_for(watch_slice);
  }
  if (*process.status() != 0) fail(Fault::system, end_of_fetch(*process.status()));
}

}  // namespace lockstep::datasets
