// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/error_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/small_file.h"

namespace lockstep {
namespace {

// torchrun dates a rank without a file to the second in which it sees the rank's end. That is up to
// one second after its death.
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
  // The kernel makes these links; they lead to files this process has open.
  const bool own = path.starts_with("/proc/self/fd/") || path.starts_with("/dev/fd/");
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC | (own ? 0 : O_NOFOLLOW);
  return FileDescriptor(::open(path.c_str(), flags, 0600));
}

// A link, a pipe or a device must not be replaced by a file.
bool may_be_replaced(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return errno == ENOENT;
  return S_ISREG(status.st_mode);
}

}  // namespace

void write_error_file(const ErrorReport& report) noexcept {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  try {
    const std::string text = json(report);
    if (may_be_replaced(path)) return write_small_file(path, text);
    if (const FileDescriptor file = open_file(path)) write_all(file.get(), text);
  } catch (...) {  // A full disk, or no memory: nobody is left to tell.
  }
}

}  // namespace lockstep
