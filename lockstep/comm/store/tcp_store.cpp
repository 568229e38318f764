// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/store/tcp_store.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "lockstep/comm/error.h"
#include "lockstep/comm/host/file_descriptor.h"
#include "lockstep/comm/store/handshake.h"
#include "lockstep/comm/store/socket_address.h"
#include "lockstep/comm/store/store_protocol.h"
#include "lockstep/comm/store/store_table.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds handshake_limit{6'000};  // More than the server's own.
constexpr std::chrono::milliseconds first_pause{10};
constexpr std::chrono::milliseconds longest_pause{500};

// Until one of `watched` is ready; false at the deadline.
template <std::size_t n>
bool poll_until(std::array<pollfd, n>& watched, Deadline deadline) {
  for (;;) {
    int timeout_ms = -1;
    if (deadline != no_deadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
    }
    const int ready = ::poll(watched.data(), watched.size(), timeout_ms);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw_errno("poll");
    if (ready == 0 && Clock::now() >= deadline) return false;
  }
}

bool ready_for(int socket, short events, Deadline deadline) {
  std::array<pollfd, 1> watched{pollfd{socket, events, 0}};
  return poll_until(watched, deadline);
}

// Why one attempt to connect failed; another may succeed.
struct NotYet {
  std::string why;
};

std::string text_of(int error_number) { return std::generic_category().message(error_number); }

FileDescriptor connect_to(const SocketAddress& address, Deadline deadline) {
  const int kind = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  FileDescriptor socket(::socket(address.family(), kind, 0));
  if (!socket) throw_errno("making a TCP socket");
  int error = 0;
  if (::connect(socket.get(), address.generic(), address.length) != 0) {
    if (errno != EINPROGRESS) throw NotYet{text_of(errno)};
    if (!ready_for(socket.get(), POLLOUT, deadline)) throw NotYet{"no answer"};
    socklen_t length = sizeof error;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  if (error != 0) throw NotYet{text_of(error)};
  if (to_text(local_address(socket.get())) == to_text(address))
    throw NotYet{"nobody listens"};  // TCP connects a socket to itself when it draws that port.
  tune_stream(socket.get());
  return socket;
}

std::string receive_exactly(int socket, std::size_t count, Deadline deadline) {
  std::string bytes(count, '\0');
  for (std::size_t received = 0; received < count;) {
    if (!ready_for(socket, POLLIN, deadline)) throw NotYet{"it takes connections but says nothing"};
    const ssize_t part = ::recv(socket, bytes.data() + received, count - received, MSG_DONTWAIT);
    if (part < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (part <= 0) throw NotYet{"it closed the connection during the handshake"};
    received += static_cast<std::size_t>(part);
  }
  return bytes;
}

void shake_hands(int socket, const TcpStoreOptions& options, Deadline deadline) {
  ClientHandshake handshake(options.member, options.token, make_nonce());
  const std::string hello = handshake.hello(receive_exactly(socket, challenge_bytes, deadline));
  if (::send(socket, hello.data(), hello.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(hello.size()))  // It is much less than a new socket's buffer.
    throw NotYet{"it closed the connection during the handshake"};
  handshake.confirm(receive_exactly(socket, verdict_bytes, deadline));
}

// Tries until the server is there and has taken us. It may drop us when it is crowded by strangers.
FileDescriptor connect_and_shake_hands(const TcpStoreOptions& options, const std::string& server) {
  const auto start = Clock::now();
  const Deadline deadline = in(options.connect_timeout);
  const std::vector<SocketAddress> addresses = resolve(options.host, options.port);
  std::string why = "no time was left";
  for (auto pause = first_pause; Clock::now() < deadline;
       pause = std::min(2 * pause, longest_pause)) {
    for (const SocketAddress& address : addresses) try {
        const Deadline limit = std::min(deadline, in(handshake_limit));
        FileDescriptor socket = connect_to(address, limit);
        shake_hands(socket.get(), options, limit);
        return socket;
      } catch (const NotYet& reason) {
        why = reason.why;
      } catch (const Error& error) {
        throw Error(error.fault(), fmt::format("store at {}: {}", server, bare_message(error)));
      }
    std::this_thread::sleep_until(std::min(deadline, in(pause)));
  }
  throw Error(Fault::timeout, fmt::format("connecting to the store at {} failed for {:.1f} s: {}",
                                          server, seconds_since(start), why));
}

}  // namespace

// Many threads, one socket: whoever waits for a reply and finds nobody reading reads for all.
class TcpStore::Connection {
 public:
  struct Answer {
    StoreReply::Kind kind = StoreReply::Kind::error;
    std::string bytes = {};
    std::int64_t number = 0;
    Fault fault = Fault::bug;
  };

  explicit Connection(const TcpStoreOptions& options)
      : server_(to_text(options.host, options.port)),
        timeout_(options.timeout),
        socket_(connect_and_shake_hands(options, server_)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_) throw_errno("eventfd");
  }

  // Empty at the deadline. `what` is for messages.
  std::optional<Answer> call(StoreRequest request, std::string_view what, Deadline deadline) {
    std::unique_lock lock(mutex_);
    throw_if_broken(what);
    request.id = next_id_++;
    const auto slot = answers_.try_emplace(request.id).first;
    queue(encode(request));
    while (!slot->second && broken_.empty() && Clock::now() < deadline) take_turn(lock, deadline);
    const std::optional<Answer> answer = std::move(slot->second);
    answers_.erase(slot);
    if (answer) return answer;
    throw_if_broken(what);
    if (request.kind == StoreRequest::Kind::wait)
      queue(encode({.kind = StoreRequest::Kind::cancel, .id = request.id}));
    return std::nullopt;
  }

  // Errors: what the server answered, and timeout.
  Answer call(const StoreRequest& request, std::string_view what) {
    const auto answer = call(request, what, in(timeout_));
    if (!answer)
      throw Error(Fault::timeout,
                  fmt::format("{} of key {}: the store at {} did not answer within "
                              "{} ms",
                              what, quoted(request.key), server_, timeout_.count()));
    return checked(*answer, what);
  }

  Answer checked(const Answer& answer, std::string_view what) const {
    if (answer.kind == StoreReply::Kind::error)
      throw Error(answer.fault, fmt::format("{}: {} (store at {})", what, answer.bytes, server_));
    return answer;
  }

 private:
  void throw_if_broken(std::string_view what) const {
    if (!broken_.empty())
      throw Error(Fault::peer_lost,
                  fmt::format("{}: lost the store at {}: {}", what, server_, broken_));
  }

  void break_off(std::string_view why) {
    if (broken_.empty()) broken_ = why;
    changed_.notify_all();
  }

  void queue(std::string frame) {
    output_ += frame;
    send_some();
    if (output_.empty() || !polling_) return;
    const std::uint64_t one = 1;  // Whoever polls must also wait for room from now on.
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }

  // Waits for news: on the socket if nobody else does, else for whoever does.
  void take_turn(std::unique_lock<std::mutex>& lock, Deadline deadline) {
    if (polling_) {
      if (deadline == no_deadline)
        changed_.wait(lock);
      else
        changed_.wait_until(lock, deadline);
      return;
    }
    polling_ = true;
    const short events = static_cast<short>(output_.empty() ? POLLIN : POLLIN | POLLOUT);
    std::array<pollfd, 2> watched{pollfd{socket_.get(), events, 0}, pollfd{wake_.get(), POLLIN, 0}};
    lock.unlock();
    poll_until(watched, deadline);
    lock.lock();
    polling_ = false;
    std::uint64_t count = 0;
    if (watched[1].revents != 0) [[maybe_unused]]
      const ssize_t got = ::read(wake_.get(), &count, sizeof count);
    send_some();
    receive_some();
    changed_.notify_all();
  }

  void send_some() {
    std::size_t sent = 0;
    while (sent < output_.size() && broken_.empty()) {
      const ssize_t part = ::send(socket_.get(), output_.data() + sent, output_.size() - sent,
                                  MSG_NOSIGNAL | MSG_DONTWAIT);
      if (part >= 0)
        sent += static_cast<std::size_t>(part);
      else if (errno == EAGAIN)
        break;
      else if (errno != EINTR)
        break_off(text_of(errno));
    }
    output_.erase(0, sent);
  }

  void receive_some() {
    std::array<char, std::size_t{64} << 10> buffer;
    for (;;) {
      const ssize_t count = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return;
      if (count < 0) return break_off(text_of(errno));
      if (count == 0) return break_off("it closed the connection");
      input_.append(buffer.data(), static_cast<std::size_t>(count));
      take_replies();
      if (static_cast<std::size_t>(count) < buffer.size()) return;
    }
  }

  void take_replies() {
    std::size_t used = 0;
    try {
      while (const auto body = first_frame(std::string_view(input_).substr(used))) {
        const StoreReply reply = decode_reply(*body);
        used += frame_header_bytes + body->size();
        const auto slot = answers_.find(reply.id);
        if (slot == answers_.end()) continue;  // Its caller has given up.
        slot->second = Answer{reply.kind, std::string(reply.bytes), reply.number, reply.fault};
      }
    } catch (const Error&) {
      break_off("it broke the protocol");
    }
    input_.erase(0, used);
  }

  const std::string server_;
  const std::chrono::milliseconds timeout_;
  const FileDescriptor socket_;
  const FileDescriptor wake_;  // Ends the poll of whoever polls.

  std::mutex mutex_;  // Guards all that follows, and the socket.
  std::condition_variable changed_;
  bool polling_ = false;
  std::string broken_;  // Why the server is lost.
  std::string input_;
  std::string output_;
  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, std::optional<Answer>> answers_;  // Of the calls under way.
};

TcpStore::TcpStore(const TcpStoreOptions& options)
    : connection_(std::make_unique<Connection>(options)) {}

TcpStore::~TcpStore() = default;

void TcpStore::set(std::string_view key, std::string_view value) {
  require_store_key(key);
  require_store_value(key, value);
  connection_->call({.kind = StoreRequest::Kind::set, .key = key, .value = value}, "store.set");
}

std::optional<std::string> TcpStore::find(std::string_view key) {
  require_store_key(key);
  auto answer = connection_->call({.kind = StoreRequest::Kind::find, .key = key}, "store.find");
  if (answer.kind == StoreReply::Kind::absent) return std::nullopt;
  return std::move(answer.bytes);
}

std::string TcpStore::wait(std::string_view key, Deadline deadline) {
  require_store_key(key);
  const auto start = Clock::now();
  // A value that is there already is worth a round trip even when the deadline has passed.
  if (deadline <= start) {
    if (auto value = find(key)) return *std::move(value);
    throw_wait_timeout(key, start);
  }
  constexpr std::string_view what = "store.wait";
  auto answer = connection_->call({.kind = StoreRequest::Kind::wait, .key = key}, what, deadline);
  if (!answer) throw_wait_timeout(key, start);
  return connection_->checked(*answer, what).bytes;
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t amount) {
  require_store_key(key);
  return connection_
      ->call({.kind = StoreRequest::Kind::add, .key = key, .amount = amount}, "store.add")
      .number;
}

std::string TcpStore::compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) {
  require_store_key(key);
  require_store_value(key, expected);
  require_store_value(key, desired);
  return connection_
      ->call({.kind = StoreRequest::Kind::compare_set,
              .key = key,
              .value = desired,
              .expected = expected},
             "store.compare_set")
      .bytes;
}

bool TcpStore::erase(std::string_view key) {
  require_store_key(key);
  return connection_->call({.kind = StoreRequest::Kind::erase, .key = key}, "store.erase").kind ==
         StoreReply::Kind::done;
}

}  // namespace lockstep
