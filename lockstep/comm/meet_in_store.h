// How ranks learn through a store that they run on one host, and agree on a name under which they
// meet there.
//
// Blocking: until rank 0 has come to the store, `deadline` at most.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "lockstep/comm/environment.h"
#include "lockstep/comm/host/agent_line.h"
#include "lockstep/comm/store/store.h"
#include "lockstep/comm/time.h"

namespace lockstep {

// A name that rank 0 made for this start of `group` and nobody else can guess. Errors: unsupported
// when this rank is on another host than rank 0, or in another network namespace; corrupt.
std::string meet_in_store(Store& store, const LaunchEnvironment& who, std::string_view group,
                          Deadline deadline);

// The store of LOCKSTEP_STORE, which the agents of the job have for this start of it. The token
// comes from this rank's agent. Errors: as TcpStore's and AgentLine's; misuse for an address that
// is none.
std::unique_ptr<Store> connect_to_agents_store(const LaunchEnvironment& who, AgentLine& agent,
                                               Deadline deadline);

}  // namespace lockstep
