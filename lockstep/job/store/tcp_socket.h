// What whoever listens on TCP, or connects, does the same way: the store, and the launchers.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/job/store/socket_address.h"

namespace lockstep {

// Errors: misuse when `address` is beyond loopback and there is no job token, unless
// LOCKSTEP_TRUST_NETWORK=1 is in the environment. `what`, such as "the store", will not listen
// then; `host` is the address as it was given.
LOCKSTEP_API void require_protection(const SocketAddress& address, const std::string& host,
                                     bool has_token, std::string_view what);

// A non-blocking socket that listens; or none, with errno set.
LOCKSTEP_API FileDescriptor try_to_listen(const SocketAddress& address);

// Why that, or the errno that it left, is an Error: misuse for a port in use, whose holder is
// named; else system.
[[noreturn]] LOCKSTEP_API void throw_not_listening(const SocketAddress& address, int error);

// A non-blocking socket on its way to `address`, or none with errno set. Once it is writable,
// finish_connecting() says why it did not get there; nothing when it did.
LOCKSTEP_API FileDescriptor begin_connecting(const SocketAddress& address);
LOCKSTEP_API std::string finish_connecting(int socket, const SocketAddress& address);

}  // namespace lockstep
