// The file in which torchrun and `lockstep run` look for a rank's error. Its JSON is that of
// torch.distributed.elastic.multiprocessing.errors for Python programs.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

struct ErrorReport {
  std::string message = {};     // "Type: text".
  std::string call_stack = {};  // Lines, shown before the message; may be empty.

  // The error only follows from another rank's, so its time must be later, whatever the clock says.
  // torchrun shows the error with the earliest second first, as the root cause.
  bool is_consequence = false;
};

// Replaces the file that TORCHELASTIC_ERROR_FILE names, mode 0600; writes it whole or not at all.
// Symbolic links are not followed, except /proc/self/fd/N. Does nothing without that variable or
// when the write fails: the caller already has worse news.
void write_error_file(const ErrorReport& report) noexcept;

}  // namespace lockstep
