// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace lockstep::tools {
namespace {

std::string counted(int count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string schedule_text(const PredictedLayout& predicted) {
  return predicted.schedule ? std::string(name_of(*predicted.schedule)) : "-";
}

// --- Table ---

using Row = std::array<std::string, 12>;

const Row heading{"",      "DP",       "TP",   "PP",   "CP",   "FSDP",
                  "MICRO", "SCHEDULE", "STEP", "IDLE", "RANK", "HOST"};

Row row_of(const PredictedLayout& predicted, int number) {
  const Layout& layout = predicted.layout;
  return {predicted.fits ? std::to_string(number) : "-",
          std::to_string(layout.dp),
          std::to_string(layout.tp),
          std::to_string(layout.pp),
          std::to_string(layout.cp),
          layout.fsdp ? "yes" : "-",
          layout.pp > 1 ? std::to_string(layout.microbatches) : "-",
          schedule_text(predicted),
          seconds_text(predicted.step),
          layout.pp > 1 ? fmt::format("{:.1f} %", 100 * predicted.bubble) : "-",
          bytes_text(predicted.rank_bytes),
          bytes_text(predicted.host_bytes)};
}

std::string text_of(const std::vector<Row>& rows, const std::vector<std::string>& ends) {
  std::array<std::size_t, std::tuple_size_v<Row>> widths{};
  for (const Row& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      const std::string fill(widths[i] - rows[r][i].size(), ' ');
      const bool is_word = i == 7;  // The schedule; numbers are right-aligned.
      text += (i == 0 ? "" : "  ") + (is_word ? rows[r][i] + fill : fill + rows[r][i]);
    }
    text += "  " + ends[r] + "\n";
  }
  return text;
}

// "dp 4, tp 2, fsdp".
std::string name_of_mesh(const Layout& layout) {
  std::string text;
  const auto add = [&](const char* name, int size) {
    if (size > 1) text += (text.empty() ? "" : ", ") + (name + (" " + std::to_string(size)));
  };
  add("pp", layout.pp);
  add("dp", layout.dp);
  add("cp", layout.cp);
  add("tp", layout.tp);
  if (layout.fsdp) text += ", fsdp";
  return text.empty() ? "one rank" : text;
}

std::string reasons_of(const std::vector<PredictedLayout>& all) {
  std::vector<std::pair<std::string, int>> reasons;
  for (const PredictedLayout& each : all) {
    if (each.impossible.empty()) continue;
    const auto found = std::find_if(reasons.begin(), reasons.end(), [&](const auto& reason) {
      return reason.first == each.impossible;
    });
    if (found == reasons.end())
      reasons.emplace_back(each.impossible, 1);
    else
      ++found->second;
  }
  if (reasons.empty()) return "";
  std::string text = "\nImpossible:\n";
  for (const auto& [reason, count] : reasons)
    text += "  " + counted(count, "layout") + ": " + reason + "\n";
  return text;
}

// --- Advice ---

std::string text_of_best(const PredictedLayout& best, const Machine& machine) {
  std::string text = "Best: " + name_of_mesh(best.layout);
  if (best.schedule) {
    text += "; schedule " + schedule_text(best);
    text += ", microbatches " + std::to_string(best.layout.microbatches);
    text += fmt::format(", cut {}", fmt::join(best.cut, ","));
  }
  text += "\n  step: " + seconds_text(best.compute) + " forward and backward";
  if (best.reduce > 0) text += ", " + seconds_text(best.reduce) + " gradients between ranks";
  text += ", " + seconds_text(best.optimizer) + " optimizer\n";
  text += "  start: lockstep run -n " + std::to_string(machine.ranks_per_host());
  if (machine.hosts > 1) text += " --nnodes " + std::to_string(machine.hosts);
  return text + " PROGRAM\n";
}

std::string text_of_nearest(const PredictedLayout& nearest, const ModelProfile& profile,
                            const Machine& machine) {
  std::string text = "No layout fits. The nearest is " + name_of_mesh(nearest.layout);
  text += ": it needs " + bytes_text(nearest.host_bytes) + " a host, and there are ";
  text += bytes_text(machine.host_bytes) + ".\nWhat would help:";
  if (nearest.activation_bytes > nearest.rank_bytes / 4)
    text += "\n  recompute blocks in backward (activation_checkpoint): activations are " +
            bytes_text(nearest.activation_bytes) + " of a rank's " + bytes_text(nearest.rank_bytes);
  if (!profile.has_fully_sharded)
    text += "\n  one copy of the weights for all replicas (FullyShardedDataParallel)";
  if (profile.rows > 1)
    text += "\n  a smaller batch than " + std::to_string(profile.rows) + " rows";
  text += "\n  more hosts, or more memory";
  return text + "\n";
}

}  // namespace

std::string bytes_text(double bytes) {
  const std::array units{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  constexpr double step = 1024;
  while (bytes >= step && unit + 1 < units.size()) {
    bytes /= step;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

std::string seconds_text(double seconds) {
  constexpr double thousand = 1000;
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  return fmt::format("{:.{}f} ms", seconds * thousand, seconds * thousand >= 1 ? 1 : 3);
}

std::string title_of(const ModelProfile& profile, const Machine& machine) {
  constexpr double million = 1e6;
  std::string text = fmt::format("{:.1f} M parameters in ", profile.parameters / million);
  text += counted(static_cast<int>(profile.layers.size()), "layer");
  text += ", batches of " + counted(profile.rows, "row") + "; ";
  text += counted(machine.ranks, "rank") + " on " + counted(machine.hosts, "host");
  return text + " with " + bytes_text(machine.host_bytes) + (machine.hosts > 1 ? " each" : "");
}

std::string table_of(const std::vector<PredictedLayout>& all, int top) {
  std::vector<Row> rows{heading};
  std::vector<std::string> ends{"LINK"};
  std::size_t more = 0;
  for (const PredictedLayout& each : all) {
    if (!each.impossible.empty()) continue;
    if (rows.size() > static_cast<std::size_t>(top)) {
      ++more;
      continue;
    }
    rows.push_back(row_of(each, static_cast<int>(rows.size())));
    ends.push_back((each.link_bytes > 0 ? bytes_text(each.link_bytes) : "-") +
                   (each.fits ? "" : "  does not fit"));
  }
  std::string text = text_of(rows, ends);
  if (more > 0) text += "and " + std::to_string(more) + " more: see --top\n";
  return text + reasons_of(all);
}

std::string advice(const std::vector<PredictedLayout>& all, const ModelProfile& profile,
                   const Machine& machine) {
  if (all.empty() || !all.front().impossible.empty()) return "No layout is possible.\n";
  return all.front().fits ? text_of_best(all.front(), machine)
                          : text_of_nearest(all.front(), profile, machine);
}

std::string json_of(const std::vector<PredictedLayout>& all, const ModelProfile& profile,
                    const Machine& machine) {
  nlohmann::ordered_json json;
  json["parameters"] = profile.parameters;
  json["rows"] = profile.rows;
  json["machine"] = {{"ranks", machine.ranks},
                     {"hosts", machine.hosts},
                     {"host_bytes", machine.host_bytes},
                     {"link_bytes_per_second", machine.link_bandwidth}};
  json["layouts"] = nlohmann::ordered_json::array();
  for (const PredictedLayout& each : all) {
    nlohmann::ordered_json one{
        {"dp", each.layout.dp},     {"tp", each.layout.tp},
        {"pp", each.layout.pp},     {"cp", each.layout.cp},
        {"fsdp", each.layout.fsdp}, {"microbatches", each.layout.microbatches}};
    if (!each.impossible.empty()) {
      one["impossible"] = each.impossible;
    } else {
      one["fits"] = each.fits;
      if (each.schedule) one["schedule"] = name_of(*each.schedule);
      if (each.schedule) one["cut"] = each.cut;
      one["step_seconds"] = each.step;
      one["compute_seconds"] = each.compute;
      one["reduce_seconds"] = each.reduce;
      one["optimizer_seconds"] = each.optimizer;
      one["bubble"] = each.bubble;
      one["rank_bytes"] = each.rank_bytes;
      one["activation_bytes"] = each.activation_bytes;
      one["host_bytes"] = each.host_bytes;
      one["link_bytes"] = each.link_bytes;
    }
    json["layouts"].push_back(std::move(one));
  }
  constexpr int indentation = 1;
  return json.dump(indentation) + "\n";
}

}  // namespace lockstep::tools
