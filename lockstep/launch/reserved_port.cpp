// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/reserved_port.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include "lockstep/comm/error.h"
#include "lockstep/comm/store/socket_address.h"

namespace lockstep {

ReservedPort::ReservedPort(const std::string& address) {
  const SocketAddress any_port = numeric_address(address, 0);
  socket_ = FileDescriptor(::socket(any_port.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket_) throw_errno("socket");
  const int yes = 1;
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(socket_.get(), any_port.generic(), any_port.length) != 0)
    throw_errno(fmt::format("reserving a TCP port on {}", address));
  number_ = local_address(socket_.get()).port();
}

}  // namespace lockstep
