// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/abstract_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <thread>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

struct Address {
  sockaddr_un value{};
  socklen_t length = 0;
};

// The name contains a hash of the identity, which may be long. Clients send the identity in full.
Address address_of(std::string_view identity) {
  const std::string name =
      fmt::format("lockstep/{}/{:016x}", ::geteuid(), std::hash<std::string_view>{}(identity));
  Address address;
  address.value.sun_family = AF_UNIX;
  std::memcpy(address.value.sun_path + 1, name.data(), name.size());  // A leading 0 makes it
                                                                      // abstract.
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

FileDescriptor make_socket() {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) throw_errno("making a Unix socket");
  return socket;
}

}  // namespace

FileDescriptor listen_on_abstract_socket(std::string_view identity) {
  FileDescriptor listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) throw_errno("making a Unix socket");
  const Address address = address_of(identity);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address.value);
  const Deadline deadline = in(std::chrono::seconds(2));
  while (::bind(listener.get(), generic, address.length) != 0) {
    if (errno != EADDRINUSE) throw_errno("binding an abstract Unix socket");
    if (Clock::now() >= deadline)
      throw Error(Fault::misuse,
                  "another job of this user on this host has the same name and still runs: give "
                  "this one another MASTER_PORT or LOCKSTEP_JOB_ID");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (::listen(listener.get(), SOMAXCONN) != 0) throw_errno("listening on a Unix socket");
  return listener;
}

FileDescriptor connect_to_abstract_socket(std::string_view identity) {
  FileDescriptor socket = make_socket();
  const Address address = address_of(identity);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address.value);
  if (::connect(socket.get(), generic, address.length) == 0) return socket;
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return FileDescriptor();
  throw_errno("connecting to an abstract Unix socket");
}

bool peer_is_this_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         peer.uid == ::geteuid();
}

}  // namespace lockstep
