// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/join_store.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/poll_until.h"
#include "lockstep/job/store/store_table.h"
#include "lockstep/job/store/tcp_socket.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds joining_limit{6'000};  // More than the server's own.
constexpr std::chrono::milliseconds first_retry_pause{10};
constexpr std::chrono::milliseconds longest_pause{500};

bool ready_for(int socket, short events, Deadline deadline) {
  std::array<pollfd, 1> watched{pollfd{socket, events, 0}};
  return poll_until(watched, deadline);
}

// Why one attempt to connect failed; another may succeed.
struct NotYet {
  std::string why;
};

FileDescriptor connect_to(const SocketAddress& address, Deadline deadline) {
  FileDescriptor socket = begin_connecting(address);
  if (!socket) throw NotYet{std::generic_category().message(errno)};
  if (!ready_for(socket.get(), POLLOUT, deadline)) throw NotYet{"no answer"};
  const std::string problem = finish_connecting(socket.get(), address);
  if (!problem.empty()) throw NotYet{problem};
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

void shake_hands(int socket, ClientHandshake& handshake, Deadline deadline) {
  const std::string hello = handshake.hello(receive_exactly(socket, challenge_bytes, deadline));
  if (::send(socket, hello.data(), hello.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(hello.size()))  // A new socket's buffer is much larger.
    throw NotYet{"it closed the connection during the handshake"};
  handshake.confirm(receive_exactly(socket, verdict_bytes, deadline));
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
      std::this_thread::sleep_until(std::min(deadline, in(pause)));
      pause = std::min(2 * pause, longest_pause);
    } while (Clock::now() < deadline);
  } catch (const Error& error) {
    throw Error(error.fault(), fmt::format("store at {}: {}", server, bare_message(error)));
  }
  throw Error(Fault::timeout, fmt::format("connecting to the store at {} failed for {:.1f} s: {}",
                                          server, seconds_since(start), why));
}

}  // namespace lockstep
