// The one line that every survivor of a failure, and the launcher, write about it, made to be
// searched for by programs:
//
//   lockstep-fail job=a1b2 rank=1 host=node3 pid=4242 cause=signal:9(SIGKILL) oom=no op=all_reduce
//   seq=812 group=world detected_by=0 after_ms=12 waits_for=- differ=- call=- called=-
//
// (one line). docs/protocol.md says what each value may be. No value has a space in it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"

namespace lockstep {

// `after` is how long whoever writes this learned of the failure after whoever noticed it first.
LOCKSTEP_API std::string failure_record(std::string_view job_id, const Failure& failure,
                                        std::chrono::milliseconds after);

}  // namespace lockstep
