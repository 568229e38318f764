// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/tcp_socket.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/job/store/port_holder.h"

namespace lockstep {
namespace {

FileDescriptor make_socket(const SocketAddress& address) {
  return FileDescriptor(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

void require_protection(const SocketAddress& address, const std::string& host, bool has_token,
                        std::string_view what) {
  const char* trust = ::getenv("LOCKSTEP_TRUST_NETWORK");
  if (address.is_loopback() || has_token || (trust != nullptr && trust == std::string_view("1")))
    return;
  throw Error(Fault::misuse,
              fmt::format("{} will not listen on {} without a job token: anybody on the "
                          "network could read and change it. Set LOCKSTEP_JOB_TOKEN_FILE on every "
                          "host (openssl rand -base64 32), or listen on 127.0.0.1, or say with "
                          "LOCKSTEP_TRUST_NETWORK=1 that nobody hostile is on this network",
                          what, host));
}

FileDescriptor try_to_listen(const SocketAddress& address) {
  FileDescriptor listener = make_socket(address);
  if (!listener) throw_errno("making a TCP socket");
  const int yes = 1;  // Allows lingering connections of an earlier job, but no second listener.
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (address.family() == AF_INET6)
    ::setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
  if (::bind(listener.get(), address.generic(), address.length) == 0 &&
      ::listen(listener.get(), SOMAXCONN) == 0)
    return listener;
  const int error = errno;
  listener = FileDescriptor();
  errno = error;
  return FileDescriptor();
}

void throw_not_listening(const SocketAddress& address, int error) {
  if (error == EADDRINUSE)
    throw Error(
        Fault::misuse,
        fmt::format("port {} of {} is in use, by {}: choose another, or port 0 for any",
                    address.port(), to_text(address), describe_port_holder(address.port())));
  throw_errno(fmt::format("listening on {}", to_text(address)), error);
}

FileDescriptor begin_connecting(const SocketAddress& address) {
  FileDescriptor socket = make_socket(address);
  if (!socket) throw_errno("making a TCP socket");
  if (::connect(socket.get(), address.generic(), address.length) == 0 || errno == EINPROGRESS)
    return socket;
  const int error = errno;
  socket = FileDescriptor();
  errno = error;
  return FileDescriptor();
}

std::string finish_connecting(int socket, const SocketAddress& address) {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return std::generic_category().message(error);
  // TCP connects a socket to itself if the kernel assigns it that port.
  if (to_text(local_address(socket)) == to_text(address)) return "nobody listens";
  tune_stream(socket);
  return "";
}

}  // namespace lockstep
