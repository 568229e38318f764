// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/small_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "lockstep/base/bare_text.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/ignore_signals.h"

namespace lockstep {

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
  std::string aside = path + ".XXXXXX";
  FileDescriptor file(::mkostemp(aside.data(), O_CLOEXEC));
  if (!file) throw_errno(path);
  try {
    write_all(file.get(), text);
    // File systems on a network tell of a full disk only then.
    if (::close(file.release()) != 0) throw_errno("closing");
    if (::rename(aside.c_str(), path.c_str()) != 0) throw_errno("renaming");
  } catch (const Error& error) {
    ::unlink(aside.c_str());
    throw Error(Fault::system, fmt::format("{}: {}", path, bare_text(error)));
  }
}

}  // namespace lockstep
