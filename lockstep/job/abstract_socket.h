// The abstract Unix socket on which a host's ranks find each other when no agent started them. The
// kernel removes the name when the process that holds it ends.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"

namespace lockstep {

// Listens on the socket named after this user and `identity`. Errors: misuse when another
// process still holds that name after two seconds.
FileDescriptor listen_on_abstract_socket(std::string_view identity);

// Connects to that socket; empty when nobody listens yet.
FileDescriptor connect_to_abstract_socket(std::string_view identity);

// Whether this user also runs the process at the other end.
bool peer_is_this_user(int socket);

}  // namespace lockstep
