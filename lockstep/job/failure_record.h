// The log line that the launcher and every survivor write about a failure, for programs to search:
//
//   lockstep-fail job=a1b2 rank=1 host=node3 pid=4242 cause=signal:9(SIGKILL) oom=no op=all_reduce
//   seq=812 group=world detected_by=0 after_ms=12 waits_for=- differ=- call=- called=-
//
// (one line). docs/protocol.md defines the values. No value contains a space.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"

namespace lockstep {

// `after`: time from the first detection of the failure until this process knew of it.
LOCKSTEP_API std::string failure_record(std::string_view job_id, const Failure& failure,
                                        std::chrono::milliseconds after);

}  // namespace lockstep
