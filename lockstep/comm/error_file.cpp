// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/error_file.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lockstep/comm/host/file_descriptor.h"

namespace lockstep {
namespace {

// A rank without a file gets the second in which torchrun sees its end, up to one after its death.
constexpr std::time_t time_of_consequences = 2;

std::string json(const ErrorReport& report) {
  std::string stack = report.message;
  if (!report.call_stack.empty())
    stack = "Call stack (innermost call first):\n" + report.call_stack + report.message;
  const std::time_t now = std::time(nullptr);
  const std::time_t stamp = report.is_consequence ? now + time_of_consequences : now;
  const nlohmann::json error = {
      {"message",
       {{"message", report.message},
        {"extraInfo", {{"py_callstack", stack}, {"timestamp", std::to_string(stamp)}}}}}};
  return error.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

FileDescriptor open_file(const std::string& path) {
  // A link that the kernel makes: it leads to what this process has open already.
  const bool own = path.starts_with("/proc/self/fd/") || path.starts_with("/dev/fd/");
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC | (own ? 0 : O_NOFOLLOW);
  return FileDescriptor(::open(path.c_str(), flags, 0600));
}

// Keeps SIGPIPE, which a pipe without a reader raises, from ending this process.
class IgnoreBrokenPipe {
 public:
  IgnoreBrokenPipe() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~IgnoreBrokenPipe() {
    const timespec at_once{};
    if (::sigismember(&before_, SIGPIPE) == 0) ::sigtimedwait(&pipe_, nullptr, &at_once);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  IgnoreBrokenPipe(const IgnoreBrokenPipe&) = delete;
  IgnoreBrokenPipe& operator=(const IgnoreBrokenPipe&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
};

void write_all(int fd, std::string_view text) {
  const IgnoreBrokenPipe ignore;
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

void write_error_file(const ErrorReport& report) noexcept {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  try {
    const std::string text = json(report);
    if (const FileDescriptor file = open_file(path)) write_all(file.get(), text);
  } catch (...) {  // No memory: nobody is left to tell.
  }
}

}  // namespace lockstep
