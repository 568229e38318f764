// Tells of a group that ranks which live have broken: by not coming, or by calling something else.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/comm/hosts/hosts_backend.h"
#include "lockstep/job/host_session.h"

namespace lockstep {

// Adds to `failure` who the ranks to blame are and where they were last seen, then notes it in the
// job page and logs it. `hosts` is null where shared memory serves all ranks.
void tell_of_break(HostSession& session, const HostsContext* hosts, Failure failure);

// What a rank that gives up its group tells those of other hosts: the job's failure, what broke the
// group of this rank, or how it left.
Failure news_of_leaving(HostSession& session);

}  // namespace lockstep
