// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/tcp/connections_loop.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/job/store/admission.h"
#include "lockstep/job/store/tcp_socket.h"

namespace lockstep::comm {
namespace {

using Kind = Frame::Kind;

FileDescriptor listen_on(const SocketAddress& address, const std::string& host) {
  FileDescriptor listener = try_to_listen(address);
  if (listener) return listener;
  if (errno == EADDRNOTAVAIL)
    throw Error(Fault::misuse, fmt::format("{} is not an address of this host", host));
  throw_not_listening(address, errno);
}

constexpr std::chrono::milliseconds finished_linger{5000};
constexpr std::chrono::milliseconds linger{200};

std::string text_of_current() {
  try {
    throw;
  } catch (const Error& error) {
    return bare_text(error);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

struct Leaving {
  std::shared_ptr<Connection> connection;
  bool has_said_all = false;
  bool has_ended = false;
};

void let_leave(Leaving& leaving, short events) {
  if ((events & POLLOUT) != 0) leaving.connection->flush();
  if ((events & (POLLIN | POLLHUP | POLLERR)) != 0)
    leaving.has_ended = !leaving.connection->discard();
}

}  // namespace

Connections::Loop::Loop(Options options)
    : options_(std::move(options)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      peers_(options_.member.rank, options_.member.world_size),
      groups_([this] { wake(); }) {
  if (!wake_) throw_errno("connecting to other hosts: eventfd");
  require_member(options_.member);
  const SocketAddress address = numeric_address(options_.listen_on, 0);
  require_protection(address, options_.listen_on, options_.token.has_value(), "this rank");
  FileDescriptor listener = listen_on(address, options_.listen_on);
  address_ = to_text(local_address(listener.get()));
  door_.emplace(
      std::move(listener),
      Door::Options{.job = options_.member,
                    .token = options_.token,
                    .channel = Channel::connections,
                    .name = fmt::format("connections of rank {}", options_.member.rank),
                    .holder_of = [this](const JobMember& member) { return holder_of(member); }});
  thread_ = start_thread(&Loop::run, this);
}

Connections::Loop::~Loop() { stop(); }

void Connections::Loop::begin_to_end() {
  stopping_ = true;
  wake();
}

void Connections::Loop::stop() {
  begin_to_end();
  if (thread_.joinable()) thread_.join();
}

void Connections::Loop::expect(const std::vector<RemoteRank>& ranks) {
  peers_.expect(ranks);
  wake();  // A rank may have been lost already.
}

// Another process may listen there soon, so no failure ends the wait.
void Connections::Loop::try_to_connect(int rank, const SocketAddress& address, Deadline deadline) {
  std::string why;
  try {
    if (FileDescriptor socket = try_to_join(address, options_.member, options_.token,
                                            Channel::connections, deadline, why)) {
      begin(rank, std::move(socket));
      return wake();
    }
  } catch (const Error& error) {
    why = bare_text(error);
  }
  peers_.refuse(rank, why);
}

std::string Connections::Loop::why_not_up(int rank) const {
  if (std::string why = peers_.why_not_up(rank); !why.empty()) return why;
  return rank < options_.member.rank ? "it did not connect to " + address_
                                     : "it did not say who it is";
}

std::shared_ptr<GroupChannels> Connections::Loop::open(const std::string& name,
                                                       const std::vector<int>& world_ranks) {
  return groups_.open(name, world_ranks, peers_.lines_of(world_ranks));
}

void Connections::Loop::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void Connections::Loop::run() {
  try {
    while (!stopping_) turn();
    leave();
  } catch (...) {
    fail();
  }
  door_.reset();
  peers_.close_all();
}

void Connections::Loop::turn() {
  std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
  // In the order of the entries after the first.
  const auto connections = peers_.open_connections();
  for (const auto& [rank, connection] : connections) {
    const int wanted = POLLIN | (connection->queued() > 0 ? POLLOUT : 0);
    entries.push_back({connection->socket(), static_cast<short>(wanted), 0});
  }
  const std::size_t at_door = entries.size();
  door_->watch(entries);
  if (::poll(entries.data(), entries.size(), timeout_ms()) < 0 && errno != EINTR)
    throw_errno("waiting for other hosts: poll");
  if (entries[0].revents != 0) {
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
  }
  for (std::size_t i = 0; i < connections.size(); ++i)
    if (entries[i + 1].revents != 0)
      serve(connections[i].first, connections[i].second, entries[i + 1].revents);
  const auto now = Clock::now();
  const std::vector<pollfd> knocking(entries.begin() + static_cast<std::ptrdiff_t>(at_door),
                                     entries.end());
  for (Door::Arrival& arrival : door_->serve(knocking, now))
    begin(arrival.member.rank, std::move(arrival.socket));
  look_for_silence(now);
  for (const Failure& failure : peers_.take_losses(now)) options_.on_failure(failure);
  groups_.notify();
}

int Connections::Loop::timeout_ms() const {
  if (groups_.has_to_notify()) return 0;
  return milliseconds_until(std::min({door_->deadline(), in(look_interval), peers_.next_loss()}));
}

// Lower ranks connect, once.
std::optional<std::string> Connections::Loop::holder_of(const JobMember& member) const {
  if (member.rank >= options_.member.rank) return "no address: the lower rank connects";
  return peers_.holder_of(member.rank);
}

void Connections::Loop::begin(int rank, FileDescriptor socket) {
  const auto connection = std::make_shared<Connection>(std::move(socket), [this] { wake(); });
  connection->send(
      {.kind = Kind::rank, .number = static_cast<std::uint64_t>(options_.member.rank)});
  peers_.connect(rank, connection);
}

void Connections::Loop::serve(int rank, const std::shared_ptr<Connection>& connection,
                              short events) {
  if ((events & POLLOUT) != 0) {
    connection->flush();
    if (connection->take_refused()) groups_.notify_all_soon();
  }
  if ((events & (POLLIN | POLLHUP | POLLERR)) == 0) return;
  try {
    const bool open =
        connection->receive([&](const Frame& frame) { hear(rank, connection, frame); });
    if (!open) peers_.end(rank, connection, connection->why());
  } catch (const Error& error) {
    if (error.fault() != Fault::corrupt) throw;
    const std::string why = "its connection broke the protocol: " + bare_text(error);
    log(LogLevel::warning,
        fmt::format("rank {} ends its connection to rank {}: {}", options_.member.rank, rank, why));
    peers_.end(rank, connection, why);
  }
}

void Connections::Loop::hear(int rank, const std::shared_ptr<Connection>& connection,
                             const Frame& frame) {
  if (frame.kind == Kind::rank || !peers_.is_up(rank)) return peers_.confirm(rank, frame);
  if (frame.kind == Kind::failure) return hear_failure(rank, frame);
  if (frame.kind == Kind::finished) return peers_.finish_peer(rank);
  if (const auto group = groups_.receiver(frame.group)) group->take(rank, connection, frame);
}

void Connections::Loop::hear_failure(int rank, const Frame& frame) {
  const Failure failure = decode_failure(frame.bytes);
  const int size = options_.member.world_size;
  if (failure.rank < 0 || failure.rank >= size)
    throw Error(Fault::corrupt, fmt::format("a failure of rank {}", failure.rank));
  if (std::any_of(failure.ranks.begin(), failure.ranks.end(),
                  [&](int blamed) { return blamed >= size; }))
    throw Error(Fault::corrupt, "a failure of ranks that the job does not have");
  if (!peers_.note_failure_of(failure.rank)) return;
  log(LogLevel::debug, fmt::format("rank {} says: {}", rank, describe(failure)));
  options_.on_failure(failure);
}

void Connections::Loop::look_for_silence(Clock::time_point now) {
  if (now - looked_ < look_interval) return;
  looked_ = now;
  for (const auto& [rank, connection] : peers_.open_connections())
    if (connection->is_unanswered())
      peers_.end(rank, connection, std::string(Connection::no_answer));
}

// Called in an exception handler. For peers, whose connections end, this rank is lost.
void Connections::Loop::fail() {
  const Error error(Fault::system, fmt::format("the connection thread of rank {} failed: {}",
                                               options_.member.rank, text_of_current()));
  log(LogLevel::error, error.what());
  peers_.fail(error);
  groups_.fail(error);
}

// Waits, for a limited time, until all data was sent and read. Data for a closed socket causes a
// reset, which drops data in transit.
void Connections::Loop::leave() {
  std::vector<Leaving> all;
  for (auto& [rank, connection] : peers_.open_connections()) all.push_back({connection});
  const Deadline deadline = in(peers_.has_finished() ? finished_linger : linger);
  while (!all.empty() && Clock::now() < deadline) {
    std::vector<pollfd> entries;
    for (Leaving& leaving : all) {
      const bool said_all = leaving.connection->queued() == 0;
      if (said_all && !leaving.has_said_all) ::shutdown(leaving.connection->socket(), SHUT_WR);
      leaving.has_said_all |= said_all;
      const int wanted = POLLIN | (said_all ? 0 : POLLOUT);
      entries.push_back({leaving.connection->socket(), static_cast<short>(wanted), 0});
    }
    const int ready = ::poll(entries.data(), entries.size(), milliseconds_until(deadline));
    if (ready < 0 && errno != EINTR) throw_errno("ending connections to other hosts: poll");
    if (ready <= 0) continue;
    for (std::size_t i = 0; i < all.size(); ++i) let_leave(all[i], entries[i].revents);
    std::erase_if(all, [](const Leaving& leaving) { return leaving.has_ended; });
  }
}

}  // namespace lockstep::comm
