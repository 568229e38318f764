// `lockstep shard`: writes the files of a folder as samples into tar shards.

// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/toolkit/datasets/shards/shard_folder.h"
#include "lockstep/train/progress.h"
#include "tools/command_line.h"
#include "tools/shard/command_line.h"
#include "tools/standard_output.h"

namespace {

using lockstep::ShardFolderReport;

constexpr const char* command = "lockstep shard";

std::string shown_bytes(std::uint64_t bytes) {
  constexpr std::array units{"bytes", "KB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < units.size(); ++unit) value /= 1000;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text.data();
}

// "1 shard", "2 shards".
std::string counted(std::size_t count, const char* one, const char* several) {
  return std::to_string(count) + ' ' + (count == 1 ? one : several);
}

std::string shown(const ShardFolderReport& report) {
  std::string text = counted(report.samples, "sample", "samples") + " in " +
                     counted(report.shards, "shard", "shards") + " of " +
                     shown_bytes(report.bytes) + (report.shards == 1 ? "" : " together");
  if (report.classes > 0) text += ", " + counted(report.classes, "class", "classes");
  if (report.kept > 0)
    text += "; " + counted(report.kept, "shard was", "shards were") + " there already";
  if (report.removed > 0)
    text += "; " + counted(report.removed, "shard", "shards") + " of an earlier run removed";
  if (report.left_out > 0)
    text += "; " + counted(report.left_out, "file", "files") + " left out, such as " +
            lockstep::clean_text(report.first_left_out);
  return text + "\n";
}

int shard(lockstep::tools::ShardCommandLine line) {
  std::optional<lockstep::Progress> progress;
  if (!line.quiet)
    line.options.at_shard = [&](std::size_t shards, std::size_t samples) {
      if (!progress)
        progress.emplace(static_cast<std::int64_t>(shards),
                         lockstep::ProgressOptions{.label = "shards"});
      progress->step(static_cast<std::int64_t>(samples));
    };
  lockstep::tools::print(shown(lockstep::shard_folder(line.options)));
  return lockstep::tools::end_output(command, 0);
}

}  // namespace

int main(int argc, char** argv) {
  const auto line = lockstep::tools::parse_shard(argc, argv);
  return lockstep::tools::run_or_complain(command, [&] { return shard(line); });
}
