// Connects a process to another one of its job: a TcpStore to its server, or a rank to a rank.

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

// Returns a socket to a server that has accepted this process. Tries again when the server is not
// there yet, or dropped the connection because strangers crowd it. `server` is for messages.
// Errors: as TcpStore's constructor.
FileDescriptor join_store(const TcpStoreOptions& options, const std::string& server);

// Tries one address once, for about 6 s at most. Returns nothing when a later attempt may succeed;
// `why` then has the reason. Errors: as ClientHandshake's.
LOCKSTEP_API FileDescriptor try_to_join(const SocketAddress& address, const JobMember& member,
                                        const std::optional<JobToken>& token, Channel channel,
                                        Deadline deadline, std::string& why);

}  // namespace lockstep
