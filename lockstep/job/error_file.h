// The file in which torchrun, and `lockstep run` like it, look for what ended a rank: the JSON that
// torch.distributed.elastic.multiprocessing.errors writes for Python programs.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

struct ErrorReport {
  std::string message = {};     // "Type: text".
  std::string call_stack = {};  // Lines; may be empty. Shown before the message.

  // Torchrun shows the error of the least second first, as the root cause: one that only follows
  // from another rank's must come later, whatever the clock says.
  bool is_consequence = false;
};

// Into the file that TORCHELASTIC_ERROR_FILE names, mode 0600, in place of what is there; not
// through a symbolic link, but for /proc/self/fd/N. A file is written whole or not at all. Nothing
// when there is no such variable, or it cannot be written: whoever calls has worse news already.
void write_error_file(const ErrorReport& report) noexcept;

}  // namespace lockstep
