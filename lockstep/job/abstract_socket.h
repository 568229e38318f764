// The abstract Unix socket on which the ranks of a host meet when no agent started them.
// Its name lives in the kernel alone and ends with the process that holds it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"

namespace lockstep {

// Listens on the socket named after this user and `identity`. Errors: misuse when another
// process still holds that name after two seconds.
FileDescriptor listen_on_abstract_socket(std::string_view identity);

// Connects to it; empty when nobody listens there yet.
FileDescriptor connect_to_abstract_socket(std::string_view identity);

// Whether the process at the other end runs as this user.
bool peer_is_this_user(int socket);

}  // namespace lockstep
