// Formats the tables of memory_report.h.

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/observe/memory_report.h"

namespace lockstep {
namespace {

using Bytes = std::optional<std::size_t>;

struct Line {
  const char* part;
  Bytes predicted;
  Bytes measured = {};
  Bytes resident = {};
};

std::string cell(const Bytes& bytes) {
  std::array<char, 32> text{};
  if (!bytes) return "           -";
  std::snprintf(text.data(), text.size(), "%12.2f", static_cast<double>(*bytes) / (1 << 20));
  return text.data();
}

std::string widened(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

std::string lines_of(const std::string& who, const std::vector<Line>& lines, bool is_measured) {
  std::string text;
  for (const Line& line : lines) {
    text += widened(&line == lines.data() ? who : "", 10) + widened(line.part, 16) +
            cell(line.predicted);
    if (is_measured) text += cell(line.measured) + cell(line.resident);
    text += '\n';
  }
  return text;
}

std::string name_of(std::size_t rank) { return "rank " + std::to_string(rank); }

std::string text_of(const std::string& who, const MemoryParts& parts) {
  return lines_of(who,
                  {{"parameters", parts.parameters},
                   {"gradients", parts.gradients},
                   {"optimizer state", parts.optimizer_state},
                   {"buckets", parts.buckets},
                   {"total", parts.total()}},
                  false);
}

std::string text_of(const std::string& who, const MemoryParts& predicted,
                    const MemoryParts& measured, const ResidentMemory& resident) {
  std::vector<Line> lines{
      {"parameters", predicted.parameters, measured.parameters, resident.parameters},
      {"gradients", predicted.gradients, measured.gradients},
      {"optimizer state", predicted.optimizer_state, measured.optimizer_state},
      {"buckets", predicted.buckets, measured.buckets, resident.buckets}};
  if (measured.caches > 0) lines.push_back({"caches", predicted.caches, measured.caches});
  lines.push_back({"total", predicted.total(), measured.total()});
  lines.push_back({"process", {}, {}, resident.process});
  return lines_of(who, lines, true);
}

std::string header(bool is_measured) {
  const std::string begin = widened("MiB", 26) + "   predicted";
  return begin + (is_measured ? "    measured    resident\n" : "\n");
}

}  // namespace

std::string to_string(const MemoryTable& predicted) {
  std::string text = header(false);
  for (std::size_t i = 0; i < predicted.ranks.size(); ++i)
    text += text_of(name_of(i), predicted.ranks[i]);
  return text + text_of("host", predicted.host);
}

std::string to_string(const MemoryReport& report) {
  std::string text = header(true);
  for (std::size_t i = 0; i < report.resident.size(); ++i)
    text += text_of(name_of(i), report.predicted.ranks[i], report.measured.ranks[i],
                    report.resident[i]);
  return text + text_of("host", report.predicted.host, report.measured.host, report.resident_host);
}

}  // namespace lockstep
