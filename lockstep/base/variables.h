// Reads environment variables that are options.
//
// Kubernetes sets NAME_PORT=tcp://ADDRESS:PORT for each service of a container's namespace:
// MASTER_PORT for a service "master". Such a value, a service link, counts as unset.
//
// Thread safety: any thread, but not concurrently with setenv(). Blocking: no.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

// tcp://, udp:// or sctp://, an address, a colon and a port.
LOCKSTEP_API bool is_service_link(std::string_view value);

// Returns `value`; null if it is null, empty or a service link. Logs one warning per process and
// variable for a service link.
LOCKSTEP_API const char* accept_variable(const char* name, const char* value);

// accept_variable() of getenv()'s result, with its lifetime.
LOCKSTEP_API const char* read_variable(const char* name);

}  // namespace lockstep
