// How a process gets its connection to another one of its job: a TcpStore, or a rank to a rank.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"
#include "lockstep/job/store/handshake.h"
#include "lockstep/job/store/socket_address.h"
#include "lockstep/job/store/tcp_store.h"

namespace lockstep {

// A socket to the server, which has taken us. Tries again when the server is not there yet, and
// when it dropped us because it is crowded by strangers. `server` is for messages.
// Errors: as TcpStore's constructor.
FileDescriptor join_store(const TcpStoreOptions& options, const std::string& server);

// One attempt at one address, of some 6 s at most. Empty when a later one may succeed, for the
// reason that is then in `why`. Errors: as ClientHandshake's.
LOCKSTEP_API FileDescriptor try_to_join(const SocketAddress& address, const JobMember& member,
                                        const std::optional<JobToken>& token, Channel channel,
                                        Deadline deadline, std::string& why);

}  // namespace lockstep
