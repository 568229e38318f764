// Addresses of TCP sockets, without ever asking a name server for the name of one.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

struct LOCKSTEP_API SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  int port() const;
  bool is_loopback() const;
};

// "127.0.0.1:29400" or "[::1]:29400".
LOCKSTEP_API std::string to_text(const SocketAddress& address);
LOCKSTEP_API std::string to_text(const std::string& host, int port);

// Of HOST:PORT or [IPV6]:PORT, without the brackets; empty when `text` is neither, or the port is
// not in 1 to 65535.
LOCKSTEP_API std::optional<std::pair<std::string, int>> host_and_port(std::string_view text);

// Errors: misuse when `host` is no numeric IPv4 or IPv6 address.
LOCKSTEP_API SocketAddress numeric_address(const std::string& host, int port);

// Numeric addresses and localhost at once; asks the resolver, which has a time limit of its own,
// for anything else. Errors: misuse when there is no such host.
LOCKSTEP_API std::vector<SocketAddress> resolve(const std::string& host, int port);

LOCKSTEP_API SocketAddress local_address(int socket);
LOCKSTEP_API SocketAddress peer_address(int socket);  // Empty when it is gone.

// No delay, and within some 10 s notice of a host that has vanished.
LOCKSTEP_API void tune_stream(int socket);

}  // namespace lockstep
