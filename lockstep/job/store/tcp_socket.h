// TCP sockets and addresses, for the store, the ranks and the launchers.
//
// Thread safety: full. Blocking: resolve() during DNS queries. No reverse look-ups.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"

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

// Splits HOST:PORT or [IPV6]:PORT, without brackets. Empty for another form or a port outside 1 to
// 65535.
LOCKSTEP_API std::optional<std::pair<std::string, int>> host_and_port(std::string_view text);

// Errors: misuse unless `host` is numeric and `port` is 0 to 65535.
LOCKSTEP_API SocketAddress numeric_address(const std::string& host, int port);

// Queries the resolver, which has its own timeout, except for numeric addresses and localhost.
// Errors: misuse when the look-up fails.
LOCKSTEP_API std::vector<SocketAddress> resolve(const std::string& host, int port);

LOCKSTEP_API SocketAddress local_address(int socket);
LOCKSTEP_API SocketAddress peer_address(int socket);  // Empty after the peer has disconnected.

// Disables Nagle's algorithm; detects an unreachable host within about 10 s.
LOCKSTEP_API void tune_stream(int socket);

// Throws misuse for listening beyond loopback without a job token, unless LOCKSTEP_TRUST_NETWORK=1.
// `what` is the service ("the store"), `host` the address as given.
LOCKSTEP_API void require_protection(const SocketAddress& address, const std::string& host,
                                     bool has_token, std::string_view what);

// Non-blocking; empty, with errno set, if the address cannot be used. Errors: system.
LOCKSTEP_API FileDescriptor try_to_listen(const SocketAddress& address);

// Throws for the errno of try_to_listen(): misuse, with the port's holder, for a port in use; else
// system.
[[noreturn]] LOCKSTEP_API void throw_not_listening(const SocketAddress& address, int error);

// Non-blocking; empty, with errno set, if connect() fails at once. Errors: system. Once the socket
// is writable, finish_connecting() returns why the connection failed; empty on success.
LOCKSTEP_API FileDescriptor begin_connecting(const SocketAddress& address);
LOCKSTEP_API std::string finish_connecting(int socket, const SocketAddress& address);

// The process that listens on a TCP port of this host: "process 4242 (python train.py)", "a process
// of user 1001" or "an unknown process".
LOCKSTEP_API std::string describe_port_holder(int port);

}  // namespace lockstep
