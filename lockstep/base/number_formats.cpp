// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/number_formats.h"

#include <algorithm>
#include <initializer_list>
#include <sstream>

#include "lockstep/base/processes.h"

namespace lockstep {
namespace {

std::vector<std::string> flags_in(std::string_view cpuinfo) {
  std::istringstream lines{std::string(cpuinfo)};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(std::min(line.find(':'), line.size() - 1) + 1));
    std::vector<std::string> flags;
    for (std::string word; words >> word;) flags.push_back(word);
    return flags;
  }
  return {};
}

NumberFormat sorted(const std::vector<std::string>& flags,
                    std::initializer_list<const char*> instructions) {
  NumberFormat format;
  for (const char* const name : instructions)
    (std::ranges::find(flags, name) == flags.end() ? format.missing : format.found)
        .emplace_back(name);
  return format;
}

std::string cpuinfo() { return read_proc_file("/proc/cpuinfo").value_or(""); }

}  // namespace

std::vector<std::string> instruction_sets() { return flags_in(cpuinfo()); }

NumberFormats number_formats_in(std::string_view cpuinfo) {
  const std::vector<std::string> flags = flags_in(cpuinfo);
  return {.bf16 = sorted(flags, {"avx512_bf16", "amx_bf16"}),
          .fp16 = sorted(flags, {"avx512_fp16", "amx_fp16"})};
}

NumberFormats number_formats() { return number_formats_in(cpuinfo()); }

}  // namespace lockstep
