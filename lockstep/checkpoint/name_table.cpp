// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/name_table.h"

#include <regex>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors_header.h"

namespace lockstep {
namespace {

// libstdc++'s regular expressions use stack per byte, and names are untrusted.
constexpr std::size_t longest_name = 1000;

std::regex compiled(const std::string& pattern) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& error) {
    throw Error(Fault::misuse,
                "NameTable: " + shown(pattern) +
                    " is not a valid regular expression: " + std::string(error.what()));
  }
}

std::vector<NameRule> ignoring(const std::vector<std::string>& patterns) {
  std::vector<NameRule> rules;
  for (const std::string& pattern : patterns) rules.push_back({.pattern = pattern, .ignore = true});
  return rules;
}

}  // namespace

struct NameTable::Rule {
  std::regex pattern;
  NameRule rule;
};

NameTable::NameTable(std::initializer_list<NameRule> rules)
    : NameTable(std::vector<NameRule>(rules)) {}

NameTable::NameTable(const std::vector<NameRule>& rules) {
  std::vector<Rule> ready;
  for (const NameRule& rule : rules) ready.push_back({compiled(rule.pattern), rule});
  rules_ = std::make_shared<const std::vector<Rule>>(std::move(ready));
}

std::optional<NameTable::Target> NameTable::find(const std::string& name) const {
  std::smatch match;
  if (rules_ != nullptr && name.size() <= longest_name)
    for (const Rule& each : *rules_) {
      if (!std::regex_match(name, match, each.pattern)) continue;
      if (each.rule.ignore) return std::nullopt;
      return Target{match.format(each.rule.replacement), each.rule.transpose};
    }
  return Target{name, false};
}

std::string exact_pattern(std::string_view name) {
  constexpr std::string_view special = "^$\\.*+?()[]{}|";
  std::string pattern;
  for (const char c : name) {
    if (special.find(c) != special.npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

NameTable without_prefix(const std::string& prefix) {
  return NameTable{NameRule{.pattern = exact_pattern(prefix) + "(.+)", .replacement = "$1"}};
}

NamePatterns::NamePatterns(const std::vector<std::string>& patterns) : table_(ignoring(patterns)) {}

bool NamePatterns::match(const std::string& name) const { return !table_.find(name); }

}  // namespace lockstep
