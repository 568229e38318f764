// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/replicate/on_rank_0.h"

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"

namespace lockstep {
namespace {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    const std::string text = exception.what();
    return text.substr(0, text.find('\n'));  // LibTorch's messages continue with all stack frames.
  } catch (...) {
    return "an exception of no known type";
  }
}

}  // namespace

std::exception_ptr attempt_on_rank_0(const ProcessGroup& group, std::string_view what,
                                     const std::function<void()>& action) {
  std::exception_ptr error;
  std::string reason;  // Empty on success.
  if (group.rank() == 0) {
    try {
      action();
    } catch (...) {
      error = std::current_exception();
      reason = std::string(what) + " failed on rank 0: " + text_of(error);
    }
  }
  reason = broadcast_bytes(reason, group, 0, {.label = what});
  if (!error && !reason.empty()) error = std::make_exception_ptr(Error(Fault::aborted, reason));
  return error;
}

}  // namespace lockstep
