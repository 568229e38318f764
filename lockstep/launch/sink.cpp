// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/sink.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

namespace lockstep {
namespace {

// Reopens the same pipe or terminal with a non-blocking mode of our own: O_NONBLOCK on the
// descriptor itself would affect every process that has inherited it. Empty for any other file, or
// one of another user.
FileDescriptor reopen(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !(S_ISFIFO(status.st_mode) || ::isatty(fd) == 1)) return {};
  const std::string path = fmt::format("/proc/self/fd/{}", fd);
  return FileDescriptor(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

bool may_block(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) != 0 || S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode) ||
         ::isatty(fd) == 1;
}

}  // namespace

Sink::Sink(int fd) : reopened_(reopen(fd)), fd_(reopened_ ? reopened_.get() : fd) {
  // If write() may block, a pipe that poll() reports ready has room for PIPE_BUF bytes.
  largest_write_ = !reopened_ && may_block(fd) ? PIPE_BUF : 64 * 1024;
}

void Sink::add(std::string_view text) {
  if (!lost_) pending_ += text;
}

void Sink::drop() {
  lost_ = true;
  pending_.clear();
  begin_ = 0;
}

void Sink::watch(std::vector<pollfd>& entries) const {
  if (pending()) entries.push_back({fd_, POLLOUT, 0});
}

int Sink::serve(const std::vector<pollfd>& entries) {
  if (std::none_of(entries.begin(), entries.end(),
                   [this](const pollfd& entry) { return entry.fd == fd_ && entry.revents != 0; }))
    return 0;
  const std::string_view next = next_write();
  const ssize_t written = ::write(fd_, next.data(), next.size());
  if (written >= 0) {
    advance(static_cast<std::size_t>(written));
    return 0;
  }
  if (errno == EAGAIN || errno == EINTR) return 0;
  const int reason = errno;
  drop();
  return reason;
}

// Returns as many whole lines as may be written at once, or the beginning of a longer line.
std::string_view Sink::next_write() const {
  const std::string_view rest = std::string_view(pending_).substr(begin_);
  if (rest.size() <= largest_write_) return rest;
  const auto newline = rest.rfind('\n', largest_write_ - 1);
  return rest.substr(0, newline == rest.npos ? largest_write_ : newline + 1);
}

// Written text is removed when it is half of the buffer: each byte is moved at most once.
void Sink::advance(std::size_t written) {
  begin_ += written;
  if (begin_ < pending_.size() / 2) return;
  pending_.erase(0, begin_);
  begin_ = 0;
}

bool same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace lockstep
