// Reads environment variables that are options.
//
// Kubernetes sets NAME_PORT=tcp://ADDRESS:PORT in every container for each service of its
// namespace. Services named "lockstep-master", "lockstep-metrics" and "master" thus set
// LOCKSTEP_MASTER_PORT, LOCKSTEP_METRICS_PORT and MASTER_PORT. Such a value, a service link, counts
// as unset. The first read of each such variable logs a warning.
//
// Thread safety: as getenv(): any thread, but not concurrently with setenv(). Blocking: no.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

// Whether `value` is a service link: tcp://, udp:// or sctp://, an address, a colon and a port.
LOCKSTEP_API bool is_service_link(std::string_view value);

// Returns `value`, the value of variable `name`; null if it is null, empty or a service link. Logs
// one warning per process and variable for a service link.
LOCKSTEP_API const char* accept_variable(const char* name, const char* value);

// Returns accept_variable() of the environment's value, with the lifetime of getenv()'s result.
LOCKSTEP_API const char* read_variable(const char* name);

}  // namespace lockstep
