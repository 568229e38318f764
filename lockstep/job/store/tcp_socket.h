// TCP sockets for listening and connecting, shared by the store and the launchers.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/job/store/socket_address.h"

namespace lockstep {

// Refuses to listen beyond loopback without a job token, unless the environment has
// LOCKSTEP_TRUST_NETWORK=1. `what`, such as "the store", names the service; `host` is the address
// as given. Errors: misuse.
LOCKSTEP_API void require_protection(const SocketAddress& address, const std::string& host,
                                     bool has_token, std::string_view what);

// Returns a non-blocking listening socket; or nothing, with errno set.
LOCKSTEP_API FileDescriptor try_to_listen(const SocketAddress& address);

// Throws for the `error` (an errno) of a failed try_to_listen(): misuse, with the port's holder,
// for a port in use; else system.
[[noreturn]] LOCKSTEP_API void throw_not_listening(const SocketAddress& address, int error);

// Returns a non-blocking socket that connects to `address`, or nothing with errno set. Once it is
// writable, finish_connecting() returns why the connection failed; empty on success.
LOCKSTEP_API FileDescriptor begin_connecting(const SocketAddress& address);
LOCKSTEP_API std::string finish_connecting(int socket, const SocketAddress& address);

}  // namespace lockstep
