// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/admission.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <system_error>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/text.h"
#include "lockstep/job/store/store_service.h"
#include "lockstep/job/store/tcp_socket.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds joining_limit{6'000};  // More than the server's limit.
constexpr std::chrono::milliseconds first_retry_pause{10};
constexpr std::chrono::milliseconds longest_pause{500};

bool ready_for(int socket, short events, Deadline deadline) {
  std::array<pollfd, 1> watched{pollfd{socket, events, 0}};
  return poll_until(watched, deadline);
}

struct NotYet {
  std::string why;
};

FileDescriptor connect_to(const SocketAddress& address, Deadline deadline) {
  FileDescriptor socket = begin_connecting(address);
  if (!socket) throw NotYet{"connect: " + std::generic_category().message(errno)};
  if (!ready_for(socket.get(), POLLOUT, deadline)) throw NotYet{"no answer"};
  const std::string problem = finish_connecting(socket.get(), address);
  if (!problem.empty()) throw NotYet{problem};
  return socket;
}

std::string receive_exactly(int socket, std::size_t count, Deadline deadline) {
  std::string bytes(count, '\0');
  for (std::size_t received = 0; received < count;) {
    if (!ready_for(socket, POLLIN, deadline))
      throw NotYet{"it accepts connections but sends nothing"};
    const ssize_t part = ::recv(socket, bytes.data() + received, count - received, MSG_DONTWAIT);
    if (part < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (part <= 0) throw NotYet{"it closed the connection during the handshake"};
    received += static_cast<std::size_t>(part);
  }
  return bytes;
}

void shake_hands(int socket, ClientHandshake& handshake, Deadline deadline) {
  const std::string hello = handshake.hello(receive_exactly(socket, challenge_bytes, deadline));
  if (::send(socket, hello.data(), hello.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(hello.size()))  // Fits a new socket's buffer.
    throw NotYet{"it closed the connection during the handshake"};
  handshake.confirm(receive_exactly(socket, verdict_bytes, deadline));
}

constexpr std::size_t max_unauthenticated = 64;
constexpr std::chrono::seconds handshake_limit{5};
constexpr std::chrono::milliseconds accept_pause{100};  // Without a free descriptor.

bool send_at_once(int socket, const std::string& bytes) {
  return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

}  // namespace

FileDescriptor try_to_join(const SocketAddress& address, const JobMember& member,
                           const std::optional<JobToken>& token, Channel channel, Deadline deadline,
                           std::string& why) {
  const Deadline limit = std::min(deadline, in(joining_limit));
  try {
    FileDescriptor socket = connect_to(address, limit);
    ClientHandshake handshake(member, token, make_nonce(), channel);
    shake_hands(socket.get(), handshake, limit);
    return socket;
  } catch (const NotYet& reason) {
    why = reason.why;
    return FileDescriptor();
  }
}

FileDescriptor join_store(const TcpStoreOptions& options, const std::string& server) {
  const auto start = Clock::now();
  const Deadline deadline = in(options.connect_timeout);
  std::string why = "no time was left";
  try {
    const std::vector<SocketAddress> addresses = resolve(options.host, options.port);
    auto pause = first_retry_pause;
    do {
      for (const SocketAddress& address : addresses)
        if (FileDescriptor socket =
                try_to_join(address, options.member, options.token, Channel::store, deadline, why))
          return socket;
      options.look();
      std::this_thread::sleep_until(std::min(deadline, in(pause)));
      pause = std::min(2 * pause, longest_pause);
    } while (Clock::now() < deadline);
  } catch (const Error& error) {
    throw Error(error.fault(), fmt::format("store at {}: {}", server, bare_text(error)));
  }
  throw Error(Fault::timeout, fmt::format("connecting to the store at {} failed for {:.1f} s: {}",
                                          server, seconds_since(start), why));
}

Door::Door(FileDescriptor listener, Options options)
    : listener_(std::move(listener)), options_(std::move(options)) {}

void Door::watch(std::vector<pollfd>& entries) const {
  if (Clock::now() >= accept_again_) entries.push_back({listener_.get(), POLLIN, 0});
  for (const UnauthenticatedPeer& peer : unauthenticated_)
    entries.push_back({peer.socket.get(), POLLIN, 0});
}

Deadline Door::deadline() const {
  Deadline first = Clock::now() < accept_again_ ? accept_again_ : no_deadline;
  for (const UnauthenticatedPeer& peer : unauthenticated_) first = std::min(first, peer.deadline);
  return first;
}

std::vector<Door::Arrival> Door::serve(const std::vector<pollfd>& entries, Clock::time_point now) {
  std::vector<Arrival> arrived;
  std::erase_if(unauthenticated_, [&](UnauthenticatedPeer& peer) {
    if (events_of(entries, peer.socket.get()) == 0) return now >= peer.deadline;
    const Progress progress = hear(peer);
    if (progress == Progress::is_in)
      arrived.push_back({std::move(peer.socket), std::move(peer.member)});
    if (progress == Progress::is_out)
      log_.warn(options_.name + ": closed a connection: it did not prove this job's token and id");
    return progress != Progress::waits;
  });
  if (events_of(entries, listener_.get()) != 0) accept_some(now);
  return arrived;
}

void Door::accept_some(Clock::time_point now) {
  constexpr int at_a_time = 32;
  for (int i = 0; i < at_a_time; ++i) {
    FileDescriptor socket(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      welcome(std::move(socket), now);
    } else if (errno != ECONNABORTED && errno != EINTR) {
      if (errno != EAGAIN) accept_again_ = now + accept_pause;
      return;
    }
  }
}

void Door::welcome(FileDescriptor socket, Clock::time_point now) {
  if (unauthenticated_.size() == max_unauthenticated)  // A random one: no peer can displace all
                                                       // others.
    unauthenticated_.erase(std::next(unauthenticated_.begin(),
                                     static_cast<std::ptrdiff_t>(random_() % max_unauthenticated)));
  tune_stream(socket.get());
  ServerHandshake handshake(options_.job, options_.token, make_nonce(), options_.channel);
  if (!send_at_once(socket.get(), handshake.challenge())) return;
  unauthenticated_.push_back({std::move(socket), std::move(handshake), "", now + handshake_limit});
}

Door::Progress Door::hear(UnauthenticatedPeer& peer) {
  std::array<char, hello_bytes> bytes{};
  const std::size_t wanted = hello_bytes - peer.hello.size();
  const ssize_t count = ::recv(peer.socket.get(), bytes.data(), wanted, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Progress::waits;
  if (count <= 0) return Progress::is_out;
  peer.hello.append(bytes.data(), static_cast<std::size_t>(count));
  if (peer.hello.size() < hello_bytes) return Progress::waits;
  const auto answer = peer.handshake.answer(peer.hello, options_.holder_of);
  peer.member = answer.member;
  const bool sent = send_at_once(peer.socket.get(), answer.frame);
  return sent && answer.verdict == Verdict::accepted ? Progress::is_in : Progress::is_out;
}

}  // namespace lockstep
