// What tests of the store server need to be strangers to it, or to be its clients in a way that
// TcpStore never is.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"
#include "lockstep/job/store/handshake.h"
#include "lockstep/job/store/job_member.h"

namespace lockstep::test {

FileDescriptor make_stranger();               // A socket that is not connected yet.
bool connect_stranger(int socket, int port);  // To 127.0.0.1.
FileDescriptor stranger_on(int port);         // Both.

// Without a token.
FileDescriptor authenticated_on(int port, const JobMember& member,
                                Channel channel = Channel::store);

// Sends all of it, unless the other end closes first.
void send_all(int socket, std::string_view bytes);

// Reads and forgets whatever comes; whether the other end closes by the deadline.
bool is_closed_by(int socket, Deadline deadline);

// The largest single allocation of the program since the last call.
std::size_t largest_allocation();

std::size_t resident_bytes();

}  // namespace lockstep::test
