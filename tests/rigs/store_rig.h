// Helpers for tests of the store server: unauthenticated peers, and clients that misbehave.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"
#include "lockstep/job/store/handshake.h"
#include "lockstep/job/store/tcp_store.h"

namespace lockstep::test {

FileDescriptor make_peer_socket();                 // A socket that is not connected yet.
bool connect_peer(int socket, int port);           // To 127.0.0.1.
FileDescriptor unauthenticated_peer_on(int port);  // A socket connected to 127.0.0.1.

// Authenticates without a token.
FileDescriptor authenticated_on(int port, const JobMember& member,
                                Channel channel = Channel::store);

// Sends all bytes, unless the other end closes first.
void send_all(int socket, std::string_view bytes);

// Discards all received data; returns true if the other end closes by the deadline.
bool is_closed_by(int socket, Deadline deadline);

// Returns the program's largest single allocation since the last call.
std::size_t largest_allocation();

std::size_t resident_bytes();

}  // namespace lockstep::test
