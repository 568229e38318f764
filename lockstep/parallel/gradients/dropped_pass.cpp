// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/dropped_pass.h"

#include <algorithm>
#include <string>

#include "lockstep/base/text.h"
#include "lockstep/parallel/gradients/give_up_later.h"

namespace lockstep {

void end_with_the_others(const std::exception_ptr& error, const ProcessGroup& own,
                         const ProcessGroup& given, std::chrono::nanoseconds longest_pass,
                         const TakePart& take_part) noexcept {
  const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::max<std::chrono::nanoseconds>(std::chrono::seconds(5), 3 * longest_pass));
  try {
    const std::string text =
        error ? exception_text(error) : "an exception that is not derived from std::exception";
    const std::string reason = "a pass of DistributedDataParallel ended with " + text;
    const GiveUpLater unless_they_come({own, given}, reason, patience);
    try {
      take_part(text);
    } catch (...) {
      own.abort(reason);
    }
  } catch (...) {  // No memory or no thread for it: they learn when this rank ends.
  }
}

}  // namespace lockstep
