// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/reserved_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "lockstep/comm/error.h"

namespace lockstep {

ReservedPort::ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (!socket_) throw_errno("socket");
  const int yes = 1;
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);

  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket_.get(), generic, length) != 0 ||
      ::getsockname(socket_.get(), generic, &length) != 0)
    throw_errno("reserving a TCP port on 127.0.0.1");
  number_ = ::ntohs(address.sin_port);
}

}  // namespace lockstep
