// Detects instruction sets of this CPU, and whether it computes with 16-bit floats natively. A CPU
// without such instructions emulates them.
//
// Thread safety: any thread may call any function. Blocking: no.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// Instruction sets for one format, with their names in /proc/cpuinfo: those that the CPU has, and
// those that it lacks. One is enough.
struct NumberFormat {
  std::vector<std::string> found = {};
  std::vector<std::string> missing = {};

  bool is_native() const { return !found.empty(); }
};

struct NumberFormats {
  NumberFormat bf16 = {};
  NumberFormat fp16 = {};
};

// Returns all CPU flags in /proc/cpuinfo.
LOCKSTEP_API std::vector<std::string> instruction_sets();

// Returns the formats of this host's CPU. Only x86 is supported; others have none.
LOCKSTEP_API NumberFormats number_formats();

// Returns the formats of the first processor in `cpuinfo`, the text of a /proc/cpuinfo.
LOCKSTEP_API NumberFormats number_formats_in(std::string_view cpuinfo);

}  // namespace lockstep
