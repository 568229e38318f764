// Instruction sets of this CPU, and the numbers of 16 bits that it computes with. A CPU without
// instructions for these emulates them.
//
// Thread safety: any thread may call any function. Blocking: no.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// Instruction sets of one format, under their names in /proc/cpuinfo: those that the CPU has, and
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

// Returns all names in /proc/cpuinfo: instruction sets, and other abilities of this host's CPU.
LOCKSTEP_API std::vector<std::string> instruction_sets();

// Returns those of this host's CPU. None are known of processors other than x86.
LOCKSTEP_API NumberFormats number_formats();

// Returns those of the first processor in the text of a /proc/cpuinfo.
LOCKSTEP_API NumberFormats number_formats_in(std::string_view cpuinfo);

}  // namespace lockstep
