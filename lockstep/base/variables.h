// Environment variables that are read as options. All of them are read here.
//
// Kubernetes sets NAME_PORT=tcp://ADDRESS:PORT in every container for each service of its
// namespace. Services named "lockstep-master", "lockstep-metrics" and "master" thus set
// LOCKSTEP_MASTER_PORT, LOCKSTEP_METRICS_PORT and MASTER_PORT. Such a value, a service link, is no
// user's choice: it counts as unset, and the first read of each variable logs a warning.
//
// Thread safety: as getenv()'s: any thread, but not beside setenv(). Blocking: no.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

// Whether `value` is a service link: tcp://, udp:// or sctp://, an address, a colon and a port.
LOCKSTEP_API bool is_service_link(std::string_view value);

// Returns `value`, the value of variable `name`, if it sets an option; null if `value` is null,
// empty or a service link. Logs one warning per process and variable for a service link.
LOCKSTEP_API const char* accept_variable(const char* name, const char* value);

// Returns accept_variable() of the environment's value. The text is that of getenv().
LOCKSTEP_API const char* read_variable(const char* name);

}  // namespace lockstep
