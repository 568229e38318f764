// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/file_descriptor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/signals.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

// Network file systems report a full disk only at close(). After EINTR the descriptor is closed.
void close_file(FileDescriptor file) {
  if (::close(file.release()) != 0 && errno != EINTR) throw_errno("closing");
}

bool is_for_want_of_rights(int error) {
  return error == EACCES || error == EPERM || error == EROFS;
}

void overwrite(const std::string& path, std::string_view text, int refusal) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) throw_errno("making a file beside it", refusal);
  write_all(file.get(), text);
  if (::ftruncate(file.get(), static_cast<off_t>(text.size())) != 0) throw_errno("cutting");
  close_file(std::move(file));
}

void replace(const std::string& path, std::string_view text) {
  std::string aside = path + ".XXXXXX";
  FileDescriptor file(::mkostemp(aside.data(), O_CLOEXEC));
  if (!file && is_for_want_of_rights(errno)) return overwrite(path, text, errno);
  if (!file) throw_errno("making it");
  try {
    write_all(file.get(), text);
    close_file(std::move(file));
    if (::rename(aside.c_str(), path.c_str()) != 0) throw_errno("renaming");
  } catch (const Error&) {
    ::unlink(aside.c_str());
    throw;
  }
}

}  // namespace

FileDescriptor duplicate(int descriptor) {
  FileDescriptor copy(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!copy) throw_errno("duplicating a descriptor");
  return copy;
}

void write_all(int descriptor, std::string_view text) {
  const IgnoreSignals ignore{SIGPIPE, SIGXFSZ};
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw_errno("writing");
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void write_small_file(const std::string& path, std::string_view text) {
  try {
    replace(path, text);
  } catch (const Error& error) {
    throw Error(Fault::system, fmt::format("{}: {}", path, bare_text(error)));
  }
}

}  // namespace lockstep
