// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/differences.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"

namespace lockstep {
namespace {

constexpr std::size_t most_lines = 8;
constexpr std::size_t most_names = 5;
constexpr std::size_t most_mismatches = 5;

struct Part {
  std::string value;
  std::vector<int> ranks;
};
using Division = std::vector<Part>;

using Values = std::map<std::string_view, std::string>;

Values by_name(const Facts& facts) {
  Values values;
  for (const auto& [name, value] : facts) values[name] += value;
  return values;
}

std::vector<std::string_view> all_names(const std::vector<Facts>& facts) {
  std::vector<std::string_view> names;
  std::map<std::string_view, bool> seen;
  for (const Facts& of_rank : facts)
    for (const auto& [name, value] : of_rank)
      if (!std::exchange(seen[name], true)) names.push_back(name);
  return names;
}

Division divide(std::string_view name, const std::vector<Values>& values) {
  Division division;
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    const auto found = values[rank].find(name);
    const std::string value = found == values[rank].end() ? "none" : found->second;
    const auto part = std::find_if(division.begin(), division.end(),
                                   [&](const Part& p) { return p.value == value; });
    if (part == division.end())
      division.push_back({value, {static_cast<int>(rank)}});
    else
      part->ranks.push_back(static_cast<int>(rank));
  }
  return division;
}

template <class Differs>
void for_each_difference(const std::vector<Facts>& facts, Differs differs) {
  std::vector<Values> values;
  for (const Facts& of_rank : facts) values.push_back(by_name(of_rank));
  for (const std::string_view name : all_names(facts))
    if (const Division division = divide(name, values); division.size() > 1)
      differs(std::string(name), division);
}

// "rank 1" or "ranks 0, 2-5".
std::string text_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last == i + 1) last = i;
    text += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
    if (last > i) text += '-' + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

// "rank 1 differs from ranks 0, 2".
std::string text_of(Division division) {
  std::stable_sort(division.begin(), division.end(),
                   [](const Part& a, const Part& b) { return a.ranks.size() < b.ranks.size(); });
  std::string text = text_of(division[0].ranks);
  text += division[0].ranks.size() == 1 ? " differs from " : " differ from ";
  for (std::size_t i = 1; i < division.size(); ++i)
    text += (i == 1 ? "" : " and from ") + text_of(division[i].ranks);
  return text;
}

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  const std::size_t shown = std::min(names.size(), most_names);
  for (std::size_t i = 0; i < shown; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > shown) text += " and " + std::to_string(names.size() - shown) + " more";
  return text;
}

std::vector<std::string> shortened(std::vector<std::string> lines) {
  if (lines.size() <= most_lines) return lines;
  const std::size_t more = lines.size() - (most_lines - 1);
  lines.resize(most_lines - 1);
  lines.push_back("and " + std::to_string(more) + " more such lines");
  return lines;
}

// "Float [3, 2]".
std::string text_of(at::ScalarType type, at::IntArrayRef sizes) {
  std::ostringstream text;
  text << type << ' ' << sizes;
  return text.str();
}

}  // namespace

std::string encode(const Facts& facts) {
  std::string text;
  for (const auto& [name, value] : facts) (text += name).append(1, '\0').append(value) += '\0';
  return text;
}

Facts decode_facts(std::string_view text) {
  const auto next = [&text] {
    const std::size_t end = std::min(text.find('\0'), text.size());
    const std::string_view part = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return std::string(part);
  };
  Facts facts;
  while (!text.empty()) {
    std::string name = next();
    facts.emplace_back(std::move(name), next());
  }
  return facts;
}

std::vector<Facts> gather(const Facts& facts, const ProcessGroup& group, std::string_view call) {
  std::vector<Facts> all;
  for (const std::string& text : all_gather_bytes(encode(facts), group, {.label = call}))
    all.push_back(decode_facts(text));
  return all;
}

std::vector<std::string> differing_values(const std::vector<Facts>& facts) {
  std::vector<std::string> lines;
  for_each_difference(facts, [&](const std::string& name, const Division& division) {
    std::string line = name;
    for (const Part& part : division)
      line += (line == name ? " " : "; ") + part.value + " on " + text_of(part.ranks);
    lines.push_back(std::move(line));
  });
  return shortened(std::move(lines));
}

std::vector<std::string> differing_tensors(const std::vector<Facts>& facts) {
  std::vector<std::pair<std::string, std::vector<std::string>>> names_by_ranks;
  for_each_difference(facts, [&](const std::string& name, const Division& division) {
    const std::string ranks = text_of(division);
    const auto found = std::find_if(names_by_ranks.begin(), names_by_ranks.end(),
                                    [&](const auto& entry) { return entry.first == ranks; });
    if (found == names_by_ranks.end())
      names_by_ranks.push_back({ranks, {name}});
    else
      found->second.push_back(name);
  });
  std::vector<std::string> lines;
  for (const auto& [ranks, names] : names_by_ranks)
    lines.push_back(ranks + " in " + std::to_string(names.size()) +
                    (names.size() == 1 ? " tensor: " : " tensors: ") + list_of(names));
  return shortened(std::move(lines));
}

const StateTensor* Mismatches::find(const StateDict& saved, const std::string& name,
                                    at::ScalarType type, at::IntArrayRef sizes) {
  const auto found = saved.tensors.find(name);
  if (found == saved.tensors.end()) {
    add(name + " was not saved");
    return nullptr;
  }
  const StateTensor& tensor = found->second;
  if (tensor.data.scalar_type() == type && at::IntArrayRef(tensor.shape) == sizes) return &tensor;
  add(name + " is " + text_of(type, sizes) + " here and was saved as " +
      text_of(tensor.data.scalar_type(), tensor.shape));
  return nullptr;
}

void Mismatches::require_none(std::string_view what) const {
  require(texts_.empty(), [&] {
    std::string text(what);
    for (std::size_t i = 0; i < std::min(texts_.size(), most_mismatches); ++i)
      text += (i == 0 ? ": " : "; ") + texts_[i];
    if (texts_.size() > most_mismatches)
      text += "; and " + std::to_string(texts_.size() - most_mismatches) + " more";
    return text;
  });
}

}  // namespace lockstep
