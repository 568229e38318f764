// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/comm/error.h"

namespace lockstep {
namespace {

std::pair<FileDescriptor, FileDescriptor> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("pipe");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

std::string prefix_of(int rank) { return fmt::format("[{}] ", rank); }

// Without line wrap a status never takes more than the one line that is erased later.
std::string drawn(std::string_view status) { return fmt::format("\033[?7l{}\033[?7h", status); }

constexpr std::string_view erasure = "\r\033[K";

bool seen(const std::vector<pollfd>& entries, int fd) {
  return std::any_of(entries.begin(), entries.end(),
                     [fd](const pollfd& entry) { return entry.fd == fd && entry.revents != 0; });
}

}  // namespace

Output::Output(int out, int err, const LogOptions& options)
    : err_fd_(err), on_terminal_(::isatty(err) == 1), err_(err) {
  if (!same_file(out, err)) out_.emplace(out);
  (void)options;
}

void Output::begin_attempt(const std::string& job_id, int attempt) {
  (void)job_id;
  (void)attempt;
}

Output::Ends Output::add(int rank, int local_rank) {
  (void)local_rank;
  auto [out, out_of_rank] = make_pipe();
  auto [err, err_of_rank] = make_pipe();
  add(rank, std::move(out), /*is_error=*/false);
  add(rank, std::move(err), /*is_error=*/true);
  return {std::move(out_of_rank), std::move(err_of_rank)};
}

std::string Output::error_file(int local_rank) const {
  (void)local_rank;
  return {};
}

void Output::add(int rank, FileDescriptor pipe, bool is_error) {
  ::fcntl(pipe.get(), F_SETFL, O_NONBLOCK);
  const bool statuses = on_terminal_ && (is_error || !out_);
  feeds_.push_back({std::move(pipe), rank, is_error, LineSplitter(statuses)});
}

void Output::say(std::string_view text) { print(err_, "lockstep run: ", text); }

void Output::watch(std::vector<pollfd>& entries) const {
  if (out_) out_->watch(entries);
  err_.watch(entries);
  for (const Feed& feed : feeds_)
    if (!sink_of(feed).full()) entries.push_back({feed.pipe.get(), POLLIN, 0});
}

void Output::serve(const std::vector<pollfd>& entries) {
  err_.serve(entries);
  const int lost = out_ ? out_->serve(entries) : 0;
  if (lost != 0 && lost != EPIPE)  // A reader who has seen enough is no news, a full disk is.
    say(fmt::format("stdout: {}; what follows is dropped", std::strerror(lost)));
  std::erase_if(feeds_, [&](Feed& feed) {
    if (!seen(entries, feed.pipe.get())) return false;
    const bool open = read(feed) || errno == EAGAIN;
    if (!open) feed.splitter.finish([&](const auto& segment) { receive(feed, segment); });
    return !open;
  });
}

bool Output::read(Feed& feed) {
  std::array<char, LineSplitter::longest_line> buffer;
  errno = 0;
  const ssize_t length = ::read(feed.pipe.get(), buffer.data(), buffer.size());
  if (length <= 0) return false;
  feed.splitter.add({buffer.data(), static_cast<std::size_t>(length)},
                    [&](const auto& segment) { receive(feed, segment); });
  return true;
}

void Output::finish() {
  for (Feed& feed : feeds_) {
    while (read(feed)) {
    }
    feed.splitter.finish([&](const auto& segment) { receive(feed, segment); });
  }
  feeds_.clear();
}

bool Output::pending() const { return (out_ && out_->pending()) || err_.pending(); }

void Output::drop() {
  if (out_) out_->drop();
  err_.drop();
}

std::optional<int> Output::columns(int rank) const {
  if (!on_terminal_) return std::nullopt;
  winsize size{};
  const bool known = ::ioctl(err_fd_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return std::max(1, (known ? size.ws_col : 80) - static_cast<int>(prefix_of(rank).size()));
}

void Output::receive(const Feed& feed, const LineSplitter::Segment& segment) {
  if (segment.status)
    show_status(feed.rank, segment.text);
  else
    print(sink_of(feed), prefix_of(feed.rank), segment.text);
}

void Output::print(Sink& sink, std::string_view prefix, std::string_view text) {
  const bool around_status = &sink == &err_ && !status_.empty();
  if (around_status) sink.add(erasure);
  sink.add(fmt::format("{}{}\n", prefix, text));
  if (around_status) sink.add(drawn(status_));
}

// There is one status line: the latest rank has it, and only that rank can take it away.
void Output::show_status(int rank, std::string_view text) {
  if (text.empty() && rank != status_rank_) return;
  if (!status_.empty()) err_.add(erasure);
  status_ = text.empty() ? "" : prefix_of(rank) + std::string(text);
  status_rank_ = text.empty() ? -1 : rank;
  if (!status_.empty()) err_.add(drawn(status_));
}

}  // namespace lockstep
