// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/agreement.h"

#include <cstddef>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::string text_of(const Setting& setting, std::uint64_t value) {
  std::string text(setting.name);
  text += " = ";
  return text += !setting.is_truth ? std::to_string(value) : value != 0 ? "true" : "false";
}

// Rank by rank.
std::vector<std::uint64_t> gather(const std::vector<std::uint64_t>& mine, std::string_view owner,
                                  const ProcessGroup& group) {
  std::vector<std::uint64_t> sent = mine;
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(group.size()));
  const auto bytes = [](std::vector<std::uint64_t>& values) {
    return Buffer{
        .data = values.data(), .count = values.size() * sizeof values[0], .dtype = DType::uint8};
  };
  group.all_gather(bytes(sent), bytes(all), {}, {.label = "settings of a " + std::string(owner)});
  return all;
}

}  // namespace

void require_agreement(std::string_view owner, const std::vector<Setting>& settings,
                       const ProcessGroup& group) {
  std::vector<std::uint64_t> mine;
  for (const Setting& setting : settings) mine.push_back(setting.value);
  const auto all = gather(mine, owner, group);
  for (std::size_t i = mine.size(); i < all.size(); ++i) {
    const std::size_t at = i % mine.size();
    if (all[i] == all[at]) continue;
    std::string message(owner);
    message += ": rank 0 has " + text_of(settings[at], all[at]);
    message += ", rank " + std::to_string(i / mine.size());
    message += " has " + text_of(settings[at], all[i]);
    throw Error(Fault::mismatch, message);
  }
}

}  // namespace lockstep
