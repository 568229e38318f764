// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/group_state.h"
#include "lockstep/job/host_session.h"

namespace lockstep {

void ProcessGroup::State::on_preemption() {
  require_own_process();
  require_usable();
  keep_preemption_signals();
  rank_wide_->expect_preemption();  // The handlers come first: from now on a signal ends no
                                    // process.
}

bool ProcessGroup::State::preempted(const CallOptions& options) {
  require(keeps_preemption_signals(), "preempted: call on_preemption() first");
  std::uint8_t any = preemption_signalled();
  Collective collective{
      .signature = {.count = 1, .operation = Operation::all_reduce, .dtype = DType::uint8},
      .output = {.data = &any, .count = 1, .dtype = DType::uint8}};
  collective.signature.op = ReduceOp::max;
  CallOptions own = options;
  own.label = "preempted";
  run(std::move(collective), own);
  if (any != 0) rank_wide_->agree_on_preemption();
  return any != 0;
}

}  // namespace lockstep
