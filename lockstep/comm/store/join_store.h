// How a TcpStore gets its connection.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/comm/host/file_descriptor.h"
#include "lockstep/comm/store/tcp_store.h"

namespace lockstep {

// A socket to the server, which has taken us. Tries again when the server is not there yet, and when
// it dropped us because it is crowded by strangers. `server` is for messages.
// Errors: as TcpStore's constructor.
FileDescriptor join_store(const TcpStoreOptions& options, const std::string& server);

}  // namespace lockstep
