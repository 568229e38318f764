// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/reserved_port.h"

#include <sys/socket.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "lockstep/job/store/tcp_socket.h"

namespace lockstep {

ReservedPort::ReservedPort(const std::string& address, int port) {
  const SocketAddress wanted = numeric_address(address, port);
  socket_ = FileDescriptor(::socket(wanted.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket_) throw_errno("socket");
  const int yes = 1;
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(socket_.get(), wanted.generic(), wanted.length) != 0)
    throw_not_listening(wanted, errno);
  number_ = local_address(socket_.get()).port();
}

}  // namespace lockstep
