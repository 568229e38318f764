// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <random>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/log.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/thread.h"
#include "lockstep/base/time.h"
#include "lockstep/job/store/handshake.h"
#include "lockstep/job/store/store_service.h"
#include "lockstep/job/store/tcp_socket.h"
#include "lockstep/job/store/tcp_store.h"

namespace lockstep {
namespace {

constexpr std::size_t most_unauthenticated = 64;
// Unsent reply bytes that pause reading from a client.
constexpr std::size_t pause_bytes = std::size_t{1} << 20;
// Unsent bytes that close a client: replies to ended waits can exceed pause_bytes.
constexpr std::size_t max_output_bytes = std::size_t{8} << 20;
constexpr std::chrono::seconds log_interval{10};
constexpr std::chrono::milliseconds listening_pause{100};

struct Connection {
  FileDescriptor socket;
  std::optional<ServerHandshake> handshake;
  JobMember member = {};
  std::string input = {};
  std::vector<job::StoreFrame> output = {};
  std::size_t sent = 0;  // Bytes of the first frame of `output`.
  std::size_t unsent = 0;
  Deadline input_deadline = no_deadline;
  Deadline output_deadline = no_deadline;
  std::uint32_t events = EPOLLIN;
  bool doomed = false;

  bool paused() const { return unsent > pause_bytes; }
};

FileDescriptor listen_on(const SocketAddress& address) {
  FileDescriptor listener = try_to_listen(address);
  if (!listener) throw_not_listening(address, errno);
  return listener;
}

// Returns the number of bytes, or -1 with errno.
ssize_t send_rest(int socket, const job::StoreFrame& frame, std::size_t sent) {
  const std::string_view value = frame.value ? std::string_view(*frame.value) : std::string_view();
  const std::size_t begin = std::min(sent, frame.bytes.size());
  const auto part_of = [](std::string_view bytes) {
    return iovec{const_cast<char*>(bytes.data()), bytes.size()};
  };
  std::array<iovec, 2> parts{part_of(std::string_view(frame.bytes).substr(begin)),
                             part_of(value.substr(sent - begin))};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

FileDescriptor open_spare() { return FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

class TcpStoreServer::Loop {
 public:
  explicit Loop(const TcpStoreServerOptions& options);
  ~Loop();

  int port() const { return port_; }

 private:
  using Id = std::uint64_t;
  static constexpr Id listener_id = 0;
  static constexpr Id stop_id = 1;

  void run();
  void turn();
  bool watch(int socket, Id id, std::uint32_t events, int operation);
  void limit(Deadline& deadline, Deadline value);

  void accept_some();
  bool make_room();
  void welcome(FileDescriptor socket);
  void drop_unauthenticated(std::string_view why);

  void serve(Id id, std::uint32_t events);
  void receive_hello(Id id, Connection& connection);
  void receive(Id id, Connection& connection);
  void process(Id id, Connection& connection);
  void deliver(Id id, job::StoreFrame frame);
  void settle();
  void flush(Id id, Connection& connection);

  void doom(Id id, Connection& connection, std::string_view why = {});
  void bury();
  void sweep();

  const TcpStoreServerOptions options_;
  const pid_t pid_ = this_process();
  FileDescriptor listener_;
  FileDescriptor epoll_;
  FileDescriptor stop_;
  FileDescriptor spare_ = open_spare();  // Closed to accept, and then close, a connection.
  int port_ = 0;

  // Only the thread uses the members below.
  job::StoreService service_;
  std::unordered_map<Id, Connection> connections_;
  std::vector<Id> unauthenticated_;
  std::vector<Id> touched_;
  std::vector<Id> doomed_;
  Id next_id_ = 2;
  Deadline next_deadline_ = no_deadline;  // Not later than any connection's.
  Deadline accept_again_ = no_deadline;
  std::minstd_rand random_{std::random_device{}()};
  SparseLog log_{log_interval};
  std::array<char, std::size_t{64} << 10> buffer_{};
  std::atomic<bool> stopping_ = false;
  Thread thread_;
};

TcpStoreServer::Loop::Loop(const TcpStoreServerOptions& options) : options_(options) {
  require_member(options.job);
  const SocketAddress address = numeric_address(options.address, options.port);
  require_protection(address, options.address, options.token.has_value(), "the store");
  listener_ = listen_on(address);
  port_ = local_address(listener_.get()).port();
  epoll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  stop_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_ || !stop_ || !spare_) throw_errno("making the store server's descriptors");
  if (!watch(listener_.get(), listener_id, EPOLLIN, EPOLL_CTL_ADD) ||
      !watch(stop_.get(), stop_id, EPOLLIN, EPOLL_CTL_ADD))
    throw_errno("starting the store server: epoll_ctl");

  thread_ = start_thread(&Loop::run, this);
}

TcpStoreServer::Loop::~Loop() {
  if (pid_ != this_process()) {  // A fork()ed child lacks the thread.
    thread_.forget();
    return;
  }
  stopping_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void TcpStoreServer::Loop::run() {
  try {
    while (!stopping_) turn();
  } catch (const std::exception& error) {
    log(LogLevel::error, fmt::format("the store on port {} ends: {}", port_, error.what()));
  }
  connections_.clear();
  listener_ = FileDescriptor();
}

void TcpStoreServer::Loop::turn() {
  std::array<epoll_event, 64> events;
  const int timeout_ms = milliseconds_until(std::min(next_deadline_, accept_again_));
  const int count =
      ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  if (count < 0 && errno != EINTR) throw_errno("serving the store: epoll_wait");
  bool knocking = false;
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    if (event.data.u64 == listener_id) knocking = true;
    if (event.data.u64 > stop_id) serve(event.data.u64, event.events);
    settle();
  }
  bury();
  if (knocking) accept_some();  // Existing clients have priority.
  sweep();
}

bool TcpStoreServer::Loop::watch(int socket, Id id, std::uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  return ::epoll_ctl(epoll_.get(), operation, socket, &event) == 0;
}

void TcpStoreServer::Loop::limit(Deadline& deadline, Deadline value) {
  deadline = value;
  next_deadline_ = std::min(next_deadline_, value);
}

void TcpStoreServer::Loop::accept_some() {
  constexpr int at_a_time = 32;
  for (int i = 0; i < at_a_time; ++i) {
    FileDescriptor socket(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      welcome(std::move(socket));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      if (make_room()) continue;
      watch(listener_.get(), listener_id, 0, EPOLL_CTL_MOD);
      accept_again_ = in(listening_pause);
      return;
    } else if (errno != ECONNABORTED && errno != EINTR) {
      return;
    }
  }
}

bool TcpStoreServer::Loop::make_room() {
  if (!unauthenticated_.empty()) {
    drop_unauthenticated("no descriptor is left");
    return true;
  }
  log_.warn(fmt::format("store on port {}: no descriptor is left for a connection", port_));
  if (!spare_) return false;
  spare_ = FileDescriptor();
  { const FileDescriptor refused(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
  spare_ = open_spare();
  return static_cast<bool>(spare_);
}

void TcpStoreServer::Loop::welcome(FileDescriptor socket) {
  if (unauthenticated_.size() == most_unauthenticated)
    drop_unauthenticated("too many are in the handshake");
  const Id id = next_id_++;
  tune_stream(socket.get());
  ServerHandshake handshake(options_.job, options_.token, make_nonce());
  const std::string& challenge = handshake.challenge();
  const ssize_t sent =
      ::send(socket.get(), challenge.data(), challenge.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(challenge.size())) return;
  if (!watch(socket.get(), id, EPOLLIN, EPOLL_CTL_ADD)) return;
  Connection& connection =
      connections_.emplace(id, Connection{std::move(socket), std::move(handshake)}).first->second;
  unauthenticated_.push_back(id);
  limit(connection.input_deadline, in(options_.handshake_timeout));
}

// At random: no peer can displace all others.
void TcpStoreServer::Loop::drop_unauthenticated(std::string_view why) {
  const Id id = unauthenticated_[random_() % unauthenticated_.size()];
  doom(id, connections_.at(id), why);
  bury();
}

void TcpStoreServer::Loop::serve(Id id, std::uint32_t events) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second.doomed) return;
  Connection& connection = found->second;
  try {
    if ((events & (EPOLLERR | EPOLLHUP)) != 0) return doom(id, connection);
    if ((events & EPOLLOUT) != 0) touched_.push_back(id);
    if ((events & EPOLLIN) == 0) return;
    if (connection.handshake)
      receive_hello(id, connection);
    else
      receive(id, connection);
  } catch (const Error& error) {
    if (error.fault() != Fault::corrupt) throw;
    doom(id, connection, "it broke the protocol");
  } catch (const std::bad_alloc&) {
    doom(id, connection, "no memory is left");
  }
}

void TcpStoreServer::Loop::receive_hello(Id id, Connection& connection) {
  std::array<char, hello_bytes> bytes{};
  const std::size_t wanted = hello_bytes - connection.input.size();
  const ssize_t count = ::recv(connection.socket.get(), bytes.data(), wanted, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return doom(id, connection, "it left before the end of the handshake");
  connection.input.append(bytes.data(), static_cast<std::size_t>(count));
  if (connection.input.size() < hello_bytes) return;

  const auto holder_of = [&](const JobMember& member) -> std::optional<std::string> {
    if (!options_.refuse_duplicates) return std::nullopt;
    for (const auto& [other_id, other] : connections_)
      if (!other.handshake && !other.doomed && other.member.rank == member.rank)
        return to_text(peer_address(other.socket.get()));
    return std::nullopt;
  };
  const ServerHandshake::Answer answer = connection.handshake->answer(connection.input, holder_of);
  const ssize_t sent = ::send(connection.socket.get(), answer.frame.data(), answer.frame.size(),
                              MSG_NOSIGNAL | MSG_DONTWAIT);
  if (answer.verdict == Verdict::refused)
    return doom(id, connection, "it did not prove this job's token");
  if (answer.verdict != Verdict::accepted)
    return doom(id, connection, "it has this job's token but is not an expected rank");
  if (sent != static_cast<ssize_t>(answer.frame.size())) return doom(id, connection);
  connection.handshake.reset();
  connection.member = answer.member;
  connection.input.clear();
  connection.input_deadline = no_deadline;
  std::erase(unauthenticated_, id);
}

void TcpStoreServer::Loop::receive(Id id, Connection& connection) {
  const ssize_t count =
      ::recv(connection.socket.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return doom(id, connection);
  connection.input.append(buffer_.data(), static_cast<std::size_t>(count));
  process(id, connection);
}

void TcpStoreServer::Loop::process(Id id, Connection& connection) {
  const auto send = [this](Id client, job::StoreFrame frame) { deliver(client, std::move(frame)); };
  std::size_t used = 0;
  while (!connection.paused() && !connection.doomed) {
    const auto body = job::first_frame(std::string_view(connection.input).substr(used));
    if (!body) break;
    service_.handle(id, job::decode_request(*body), send);
    used += job::frame_header_bytes + body->size();
  }
  connection.input.erase(0, used);
  if (connection.input.empty() && connection.input.capacity() > pause_bytes)
    connection.input.shrink_to_fit();
  if (connection.input.empty() || connection.paused())
    connection.input_deadline = no_deadline;
  else if (used > 0 || connection.input_deadline == no_deadline)
    limit(connection.input_deadline, in(options_.frame_timeout));
}

void TcpStoreServer::Loop::deliver(Id id, job::StoreFrame frame) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second.doomed) return;
  Connection& connection = found->second;
  if (connection.unsent > max_output_bytes)
    return doom(id, connection, "it does not read its replies");
  connection.unsent += frame.size();
  std::vector<job::StoreFrame>& output = connection.output;
  if (output.empty() || output.back().value) {
    output.push_back(std::move(frame));
  } else {
    if (output.size() == 1) output.back().bytes.erase(0, std::exchange(connection.sent, 0));
    output.back().bytes += frame.bytes;
    output.back().value = std::move(frame.value);
  }
  touched_.push_back(id);
}

void TcpStoreServer::Loop::settle() {
  while (!touched_.empty()) {
    const Id id = touched_.back();
    touched_.pop_back();
    const auto found = connections_.find(id);
    if (found == connections_.end() || found->second.doomed) continue;
    try {
      flush(id, found->second);
    } catch (const Error& error) {
      if (error.fault() != Fault::corrupt) throw;
      doom(id, found->second, "it broke the protocol");
    }
  }
}

void TcpStoreServer::Loop::flush(Id id, Connection& connection) {
  const bool was_paused = connection.paused();
  while (connection.unsent > 0) {
    const ssize_t sent =
        send_rest(connection.socket.get(), connection.output.front(), connection.sent);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) return doom(id, connection);
    if (sent < 0) break;
    connection.sent += static_cast<std::size_t>(sent);
    connection.unsent -= static_cast<std::size_t>(sent);
    if (connection.sent == connection.output.front().size()) {
      connection.output.erase(connection.output.begin());
      connection.sent = 0;
    }
    limit(connection.output_deadline, in(options_.frame_timeout));
  }
  if (connection.unsent == 0) {
    connection.output = {};
    connection.output_deadline = no_deadline;
  } else if (connection.output_deadline == no_deadline) {
    limit(connection.output_deadline, in(options_.frame_timeout));
  }
  if (was_paused && !connection.paused()) process(id, connection);
  const std::uint32_t events =
      (connection.paused() ? 0u : EPOLLIN) | (connection.unsent > 0 ? EPOLLOUT : 0u);
  if (events == connection.events) return;
  connection.events = events;
  if (!watch(connection.socket.get(), id, events, EPOLL_CTL_MOD)) doom(id, connection);
}

// `why` is logged and must not contain a peer's bytes.
void TcpStoreServer::Loop::doom(Id id, Connection& connection, std::string_view why) {
  if (connection.doomed) return;
  connection.doomed = true;
  doomed_.push_back(id);
  if (!why.empty()) log_.warn(fmt::format("store on port {}: closed a connection: {}", port_, why));
}

void TcpStoreServer::Loop::bury() {
  for (const Id id : doomed_) {
    service_.forget(id);
    std::erase(unauthenticated_, id);
    connections_.erase(id);
  }
  doomed_.clear();
}

void TcpStoreServer::Loop::sweep() {
  const auto now = Clock::now();
  if (now >= accept_again_) {
    accept_again_ = no_deadline;
    if (!spare_) spare_ = open_spare();
    watch(listener_.get(), listener_id, EPOLLIN, EPOLL_CTL_MOD);
  }
  if (now < next_deadline_) return;
  next_deadline_ = no_deadline;
  for (auto& [id, connection] : connections_) {
    const Deadline deadline = std::min(connection.input_deadline, connection.output_deadline);
    if (now >= deadline)
      doom(id, connection, "it was too slow");
    else
      next_deadline_ = std::min(next_deadline_, deadline);
  }
  bury();
}

TcpStoreServer::TcpStoreServer(const TcpStoreServerOptions& options)
    : loop_(std::make_unique<Loop>(options)) {}

TcpStoreServer::~TcpStoreServer() = default;

int TcpStoreServer::port() const { return loop_->port(); }

}  // namespace lockstep
