// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {
namespace {

// For large writes while the launcher is busy.
constexpr int large_pipe = 1 << 20;

// A quarter of a user's default limit (pipe-user-pages-soft). Beyond it, all new pipes would be
// very small.
constexpr std::size_t most_large_pipes = 16;

std::pair<FileDescriptor, FileDescriptor> make_pipe(bool large) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("making a pipe for a rank's output: pipe2");
  if (large) ::fcntl(ends[1], F_SETPIPE_SZ, large_pipe);  // If not permitted, keeps the default.
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

FileDescriptor open_nothing() {
  FileDescriptor fd(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (!fd) throw_errno("opening /dev/null");
  return fd;
}

bool holds(Streams streams, bool is_error) {
  const Streams wanted = is_error ? Streams::err : Streams::out;
  return (static_cast<int>(streams) & static_cast<int>(wanted)) != 0;
}

bool any(const StreamChoice& choice) {
  return choice.all != Streams::none ||
         std::any_of(choice.of_local_rank.begin(), choice.of_local_rank.end(),
                     [](const auto& each) { return each.second != Streams::none; });
}

// Without line wrap, a status line fits the one line erased later.
std::string drawn(std::string_view status) { return fmt::format("\033[?7l{}\033[?7h", status); }

constexpr std::string_view erasure = "\r\033[K";

}  // namespace

void LineSplitter::add(std::string_view bytes, const Receiver& receive) {
  while (!bytes.empty()) {
    const auto at = statuses_ ? bytes.find_first_of("\r\n") : bytes.find('\n');
    const auto length = std::min(at == bytes.npos ? bytes.size() : at, longest_line - rest_.size());
    rest_.append(bytes.substr(0, length));
    if (length > 0) after_return_ = false;
    bytes.remove_prefix(length);
    if (length == at) {
      if (bytes.front() == '\n')
        end_line(receive);
      else
        end_status(receive);
      bytes.remove_prefix(1);
    } else if (length == 0) {
      end_line(receive);  // The line has reached its maximum length.
    }
  }
  // Otherwise a bar that begins with its carriage return ("\r 50%") would appear one update late.
  if (overwriting_ && !rest_.empty() && rest_ != status_) {
    receive({status_ = rest_, true});
    returns_first_ = true;
  }
}

void LineSplitter::finish(const Receiver& receive) {
  if (!rest_.empty()) end_line(receive);
  if (!status_.empty()) receive({"", true});
  status_.clear();
}

void LineSplitter::end_line(const Receiver& receive) {
  // CR LF ends a line too, but the CR may have arrived first.
  if (after_return_) rest_.swap(status_);
  if (after_return_ || returns_first_) {
    status_.clear();
    receive({"", true});
  }
  receive({rest_, false});
  rest_.clear();
  after_return_ = overwriting_ = returns_first_ = false;
}

void LineSplitter::end_status(const Receiver& receive) {
  status_.swap(rest_);
  rest_.clear();
  receive({status_, true});
  after_return_ = overwriting_ = true;
}

Output::Output(int out, int err, const LogOptions& options)
    : options_(options),
      format_(options.format, wants_colors(out), wants_colors(err)),
      files_(options.directory),
      err_fd_(err),
      on_terminal_(::isatty(err) == 1),
      err_(err),
      buffer_(LineSplitter::longest_line) {
  require(files_ || (!any(options.redirects) && !any(options.tee)),
          "output that is to go to files needs a folder for logs");
  if (!same_file(out, err)) out_.emplace(out);
}

void Output::begin_attempt(const std::string& job_id, int attempt) {
  files_.begin_attempt(job_id, attempt);
}

Output::Ends Output::add(int rank, int local_rank, int incarnation) {
  FileDescriptor out =
      add({.rank = rank, .local_rank = local_rank, .is_error = false}, incarnation);
  FileDescriptor err = add({.rank = rank, .local_rank = local_rank, .is_error = true}, incarnation);
  return {std::move(out), std::move(err)};
}

// As with torchrun, a teed and redirected stream is still shown.
FileDescriptor Output::add(const LineSource& source, int incarnation) {
  const bool shown =
      options_.local_ranks.empty() || options_.local_ranks.contains(source.local_rank);
  const bool tee = holds(options_.tee.of(source.local_rank), source.is_error);
  const bool redirected = holds(options_.redirects.of(source.local_rank), source.is_error);
  if (!files_) return shown ? add_feed(source, {}, shown) : open_nothing();
  if (shown && !tee && !redirected) return add_feed(source, {}, shown);

  LogFile file =
      files_.create(source.local_rank, source.is_error ? "stderr.log" : "stdout.log", incarnation);
  return add_feed(source, std::move(file), shown && tee);
}

std::string Output::error_file(int local_rank, int incarnation) const {
  return files_.path_of(local_rank, "error.json", incarnation);
}

FileDescriptor Output::add_feed(const LineSource& source, LogFile file, bool shown) {
  auto [pipe, of_rank] = make_pipe(/*large=*/feeds_.size() < most_large_pipes);
  ::fcntl(pipe.get(), F_SETFL, O_NONBLOCK);
  const bool with_statuses = statuses() && (source.is_error || !out_);
  feeds_.push_back({std::move(pipe), source, LineSplitter(with_statuses), std::move(file), shown});
  return std::move(of_rank);
}

void Output::say(std::string_view text, Level level) { print(err_, format_.own_line(level, text)); }

void Output::watch(std::vector<pollfd>& entries) const {
  if (out_) out_->watch(entries);
  err_.watch(entries);
  for (const Feed& feed : feeds_)
    if (!feed.shown || !sink_of(feed).full()) entries.push_back({feed.pipe.get(), POLLIN, 0});
}

void Output::serve(const std::vector<pollfd>& entries) {
  serve(err_, "stderr", entries);
  if (out_) serve(*out_, "stdout", entries);
  std::erase_if(feeds_, [&](Feed& feed) {
    if (events_of(entries, feed.pipe.get()) == 0) return false;
    const bool open = read(feed) || errno == EAGAIN;
    if (!open) end(feed);
    return !open;
  });
}

void Output::serve(Sink& sink, const char* name, const std::vector<pollfd>& entries) {
  const int reason = sink.serve(entries);
  if (reason == 0 || reason == EPIPE) return;  // A closed reader is no error.
  lost_ = true;
  say(fmt::format("writing to {}: {}; what follows is dropped", name, std::strerror(reason)),
      Level::error);
}

bool Output::read(Feed& feed) {
  errno = 0;
  const ssize_t length = ::read(feed.pipe.get(), buffer_.data(), buffer_.size());
  if (length <= 0) return false;
  const std::string_view bytes(buffer_.data(), static_cast<std::size_t>(length));
  keep(feed, bytes);
  if (feed.shown) feed.splitter.add(bytes, [&](const auto& segment) { receive(feed, segment); });
  return true;
}

void Output::end(Feed& feed) {
  feed.splitter.finish([&](const auto& segment) { receive(feed, segment); });
}

// After a failed write, the console shows all output.
void Output::keep(Feed& feed, std::string_view bytes) {
  const int lost = feed.file.write(bytes);
  if (lost == 0) return;
  say(fmt::format("writing {}: {}; what follows is not in it", feed.file.path(),
                  std::strerror(lost)),
      Level::error);
}

void Output::finish() {
  for (Feed& feed : feeds_) {
    while (read(feed)) {
    }
    end(feed);
  }
  feeds_.clear();
}

bool Output::pending() const { return (out_ && out_->pending()) || err_.pending(); }

void Output::drop() {
  if (out_) out_->drop();
  err_.drop();
}

std::optional<int> Output::columns(int rank) const {
  if (!statuses()) return std::nullopt;
  winsize size{};
  const bool known = ::ioctl(err_fd_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return std::max(1, (known ? size.ws_col : 80) - LineFormat::width_of_prefix(rank));
}

void Output::receive(const Feed& feed, const LineSplitter::Segment& segment) {
  if (segment.status)
    show_status(feed.source, segment.text);
  else
    print(sink_of(feed), format_.line(feed.source, segment.text));
}

void Output::print(Sink& sink, std::string_view line) {
  const bool around_status = &sink == &err_ && !status_.empty();
  if (around_status) sink.add(erasure);
  sink.add(line);
  if (around_status) sink.add(drawn(status_));
}

// Only the latest rank, the status line's owner, can remove it.
void Output::show_status(const LineSource& source, std::string_view text) {
  if (text.empty() && source.rank != status_rank_) return;
  if (!status_.empty()) err_.add(erasure);
  status_ = text.empty() ? "" : format_.prefix(source) + std::string(text);
  status_rank_ = text.empty() ? -1 : source.rank;
  if (!status_.empty()) err_.add(drawn(status_));
}

}  // namespace lockstep::launch
