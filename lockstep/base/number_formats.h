// Detects whether this CPU computes with 16-bit floats natively or emulates them.
//
// Thread safety: full. Blocking: no.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// Instruction sets that compute in one format, named as in /proc/cpuinfo. Any one suffices.
struct NumberFormat {
  std::vector<std::string> found = {};
  std::vector<std::string> missing = {};

  bool is_native() const { return !found.empty(); }
};

struct NumberFormats {
  NumberFormat bf16 = {};
  NumberFormat fp16 = {};
};

// All CPU flags in /proc/cpuinfo.
LOCKSTEP_API std::vector<std::string> instruction_sets();

// This CPU's; empty on CPUs other than x86.
LOCKSTEP_API NumberFormats number_formats();

// For the first processor in the text of a /proc/cpuinfo.
LOCKSTEP_API NumberFormats number_formats_in(std::string_view cpuinfo);

}  // namespace lockstep
