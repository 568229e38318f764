// Addresses of TCP sockets. Never asks a name server for the name of an address.

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

// Returns "127.0.0.1:29400" or "[::1]:29400".
LOCKSTEP_API std::string to_text(const SocketAddress& address);
LOCKSTEP_API std::string to_text(const std::string& host, int port);

// Splits HOST:PORT or [IPV6]:PORT, without the brackets. Empty when `text` has another form or the
// port is not in 1 to 65535.
LOCKSTEP_API std::optional<std::pair<std::string, int>> host_and_port(std::string_view text);

// Errors: misuse when `host` is not a numeric IPv4 or IPv6 address.
LOCKSTEP_API SocketAddress numeric_address(const std::string& host, int port);

// Returns at once for numeric addresses and localhost. Asks the resolver, which has its own time
// limit, for other names. Errors: misuse when the host does not exist.
LOCKSTEP_API std::vector<SocketAddress> resolve(const std::string& host, int port);

LOCKSTEP_API SocketAddress local_address(int socket);
LOCKSTEP_API SocketAddress peer_address(int socket);  // Empty when the peer is gone.

// Turns off Nagle's delay, and detects a vanished host within about 10 s.
LOCKSTEP_API void tune_stream(int socket);

}  // namespace lockstep
