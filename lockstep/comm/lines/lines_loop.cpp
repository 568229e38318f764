// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/lines/lines_loop.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/base/bare_text.h"
#include "lockstep/base/log.h"
#include "lockstep/base/poll_until.h"
#include "lockstep/job/store/join_store.h"
#include "lockstep/job/store/socket_address.h"
#include "lockstep/job/store/tcp_socket.h"

namespace lockstep {
namespace {

using Kind = LineFrame::Kind;

constexpr std::chrono::milliseconds slice{20};

FileDescriptor listen_on(const SocketAddress& address, const std::string& host) {
  FileDescriptor listener = try_to_listen(address);
  if (listener) return listener;
  if (errno == EADDRNOTAVAIL)
    throw Error(Fault::misuse, fmt::format("{} is no address of this host", host));
  throw_not_listening(address, errno);
}

}  // namespace

Lines::Loop::Loop(Options options)
    : options_(std::move(options)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      peers_(static_cast<std::size_t>(options_.member.world_size)) {
  if (!wake_) throw_errno("eventfd");
  require_member(options_.member);
  const SocketAddress address = numeric_address(options_.listen_on, 0);
  require_protection(address, options_.listen_on, options_.token.has_value(), "this rank");
  FileDescriptor listener = listen_on(address, options_.listen_on);
  address_ = to_text(local_address(listener.get()));
  door_.emplace(
      std::move(listener),
      Door::Options{.job = options_.member,
                    .token = options_.token,
                    .channel = Channel::lines,
                    .name = fmt::format("lines of rank {}", options_.member.rank),
                    .holder_of = [this](const JobMember& member) { return holder_of(member); }});
  thread_ = start_thread(&Loop::run, this);
}

Lines::Loop::~Loop() { stop(); }

void Lines::Loop::stop() {
  stopping_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
}

void Lines::Loop::expect(const std::vector<RemoteRank>& ranks) {
  {
    const std::lock_guard lock(mutex_);
    for (const RemoteRank& remote : ranks) {
      require(remote.rank >= 0 && remote.rank < options_.member.world_size &&
                  remote.rank != options_.member.rank,
              "a line is to another rank of the job");
      peers_[static_cast<std::size_t>(remote.rank)].remote = remote;
    }
  }
  wake();  // A rank may have been lost already.
}

// Never ends the wait: another process may listen at the address soon.
void Lines::Loop::try_to_connect(int rank, const SocketAddress& address, Deadline deadline) {
  std::string why;
  try {
    if (FileDescriptor socket =
            try_to_join(address, options_.member, options_.token, Channel::lines, deadline, why)) {
      begin(rank, std::move(socket));
      return wake();
    }
  } catch (const Error& error) {
    why = bare_text(error);
  }
  const std::lock_guard lock(mutex_);
  peers_[static_cast<std::size_t>(rank)].why = why;
}

bool Lines::Loop::has_line(int rank) const {
  const std::lock_guard lock(mutex_);
  return peers_[static_cast<std::size_t>(rank)].line != nullptr;
}

bool Lines::Loop::is_up(int rank) const {
  const std::lock_guard lock(mutex_);
  return peers_[static_cast<std::size_t>(rank)].up;
}

std::string Lines::Loop::why_not_up(int rank) const {
  const std::lock_guard lock(mutex_);
  const std::string& why = peers_[static_cast<std::size_t>(rank)].why;
  if (!why.empty()) return why;
  return rank < options_.member.rank ? "it did not connect to " + address_
                                     : "it did not say who it is";
}

bool Lines::Loop::await_lines(Deadline deadline, const std::function<void()>& watch) {
  std::unique_lock lock(mutex_);
  const auto is_missing = [](const Peer& peer) { return peer.remote && !peer.up; };
  for (;;) {
    if (failed_) throw *failed_;
    for (std::size_t rank = 0; rank < peers_.size(); ++rank)
      if (peers_[rank].remote && peers_[rank].ended)
        throw Error("connecting ranks of different hosts", failure_of(static_cast<int>(rank)));
    if (std::none_of(peers_.begin(), peers_.end(), is_missing)) return true;
    if (Clock::now() >= deadline) return false;
    changed_.wait_until(lock, std::min(deadline, in(slice)));
    lock.unlock();
    watch();
    lock.lock();
  }
}

void Lines::Loop::send_to_all(const LineFrame& frame) {
  const std::lock_guard lock(mutex_);
  for (const Peer& peer : peers_)
    if (peer.line) peer.line->send(frame);
}

void Lines::Loop::finish() {
  send_to_all({.kind = Kind::finished});
  const std::lock_guard lock(mutex_);
  finished_ = true;
}

std::shared_ptr<GroupLines> Lines::Loop::open(const std::string& name,
                                              const std::vector<int>& world_ranks) {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Line>> lines;
  for (const int rank : world_ranks)
    lines.push_back(peers_.at(static_cast<std::size_t>(rank)).line);
  if (failed_) throw *failed_;
  const std::uint64_t id = group_id(name);
  require(groups_.contains(id) || !was_opened(id), [&] {
    return fmt::format("group {}, or one of the same hash, was opened before", name);
  });
  const bool came_before = groups_.contains(id) && !was_opened(id);
  const auto opened = group(id);
  opened->open(name, world_ranks, lines);
  ever_opened_.insert(std::upper_bound(ever_opened_.begin(), ever_opened_.end(), id), id);
  if (came_before) --unopened_;
  return opened;
}

void Lines::Loop::close(GroupLines& group) {
  group.close();
  const std::lock_guard lock(mutex_);
  groups_.erase(group.id());
}

bool Lines::Loop::was_opened(std::uint64_t id) const {
  return std::binary_search(ever_opened_.begin(), ever_opened_.end(), id);
}

void Lines::Loop::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void Lines::Loop::run() {
  try {
    while (!stopping_) turn();
    leave();
  } catch (...) {
    fail();
  }
  door_.reset();
  const std::lock_guard lock(mutex_);
  for (const Peer& peer : peers_)
    if (peer.line) peer.line->close();
}

void Lines::Loop::turn() {
  std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
  const auto lines = open_lines();  // In the order of the entries after the first.
  for (const auto& [rank, line] : lines) {
    const int wanted = POLLIN | (line->queued() > 0 ? POLLOUT : 0);
    entries.push_back({line->socket(), static_cast<short>(wanted), 0});
  }
  const std::size_t at_door = entries.size();
  door_->watch(entries);
  if (::poll(entries.data(), entries.size(), timeout_ms()) < 0 && errno != EINTR)
    throw_errno("poll");
  if (entries[0].revents != 0) {
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
  }
  for (std::size_t i = 0; i < lines.size(); ++i)
    if (entries[i + 1].revents != 0) serve(lines[i].first, lines[i].second, entries[i + 1].revents);
  const auto now = Clock::now();
  const std::vector<pollfd> knocking(entries.begin() + static_cast<std::ptrdiff_t>(at_door),
                                     entries.end());
  for (Door::Arrival& arrival : door_->serve(knocking, now))
    begin(arrival.member.rank, std::move(arrival.socket));
  look_for_silence(now);
  report(now);
  tell_groups();
}

std::vector<std::pair<int, std::shared_ptr<Line>>> Lines::Loop::open_lines() const {
  std::vector<std::pair<int, std::shared_ptr<Line>>> lines;
  const std::lock_guard lock(mutex_);
  for (std::size_t rank = 0; rank < peers_.size(); ++rank)
    if (const Peer& peer = peers_[rank]; peer.line && !peer.ended)
      lines.emplace_back(static_cast<int>(rank), peer.line);
  return lines;
}

int Lines::Loop::timeout_ms() const {
  Deadline first = std::min(door_->deadline(), in(look_interval));
  const std::lock_guard lock(mutex_);
  if (!to_tell_.empty()) return 0;
  for (const Peer& peer : peers_)
    if (peer.remote) first = std::min(first, peer.report_at);
  return milliseconds_until(first);
}

// Each rank connects to those of higher number, once.
std::optional<std::string> Lines::Loop::holder_of(const JobMember& member) const {
  if (member.rank >= options_.member.rank) return "nowhere: it is for the lower rank to connect";
  const std::lock_guard lock(mutex_);
  const Peer& peer = peers_[static_cast<std::size_t>(member.rank)];
  if (!peer.up) return std::nullopt;  // A connection without a confirmed rank gives way.
  return peer.ended ? "a process that has ended" : to_text(peer_address(peer.line->socket()));
}

void Lines::Loop::begin(int rank, FileDescriptor socket) {
  const auto line = std::make_shared<Line>(std::move(socket), [this] { wake(); });
  line->send({.kind = Kind::rank, .number = static_cast<std::uint64_t>(options_.member.rank)});
  const std::lock_guard lock(mutex_);
  peers_[static_cast<std::size_t>(rank)].line = line;
}

void Lines::Loop::serve(int rank, const std::shared_ptr<Line>& line, short events) {
  if ((events & POLLOUT) != 0) {
    line->flush();
    if (line->take_refused()) {
      const std::lock_guard lock(mutex_);
      for (const auto& [id, group] : groups_) to_tell_.push_back(id);
    }
  }
  if ((events & (POLLIN | POLLHUP | POLLERR)) == 0) return;
  try {
    const bool open = line->receive([&](const LineFrame& frame) { hear(rank, line, frame); });
    if (!open) end(rank, line, line->why());
  } catch (const Error& error) {
    if (error.fault() != Fault::corrupt) throw;
    const std::string why = "its connection broke the protocol: " + bare_text(error);
    log(LogLevel::warning,
        fmt::format("rank {} ends its line to rank {}: {}", options_.member.rank, rank, why));
    end(rank, line, why);
  }
}

std::shared_ptr<GroupLines> Lines::Loop::group(std::uint64_t id) {
  auto& group = groups_[id];
  if (group) return group;
  group = std::make_shared<GroupLines>(id, [this, id] {
    {
      const std::lock_guard lock(mutex_);
      to_tell_.push_back(id);
    }
    wake();
  });
  return group;
}

void Lines::Loop::tell_groups() {
  std::vector<std::shared_ptr<GroupLines>> groups;
  {
    const std::lock_guard lock(mutex_);
    for (const std::uint64_t id : to_tell_)
      if (const auto found = groups_.find(id); found != groups_.end())
        groups.push_back(found->second);
    to_tell_.clear();
  }
  for (const auto& group : groups) group->tell(true);
}

}  // namespace lockstep
