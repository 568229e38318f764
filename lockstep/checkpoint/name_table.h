// Rules that map tensor names in another program's file to names in a module. Thread safety: const
// members may run concurrently.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

struct NameRule {
  // A std::regex (ECMAScript) for the whole name. Names beyond 1000 bytes never match.
  std::string pattern;

  // "$1" and so on are the pattern's groups, "$&" is the whole name.
  std::string replacement = "$&";

  bool transpose = false;  // Whether the file has the transposed matrix.
  bool ignore = false;     // Whether to skip this tensor.
};

// The first rule that matches a name applies. Other names do not change. For save_weights(), a
// table maps the module's names to the file's.
//
//   const lockstep::NameTable names{
//       {.pattern = R"(h\.(\d+)\.(.+))", .replacement = "blocks.$1.$2"},  // From GPT-2.
//       {.pattern = R"(.+\.masked_bias)", .ignore = true}};
//   lockstep::load_weights(*model, "model.safetensors", names);
//
// Errors: misuse for an invalid pattern.
class LOCKSTEP_API NameTable {
 public:
  NameTable() = default;  // Keeps all names.
  NameTable(std::initializer_list<NameRule> rules);
  explicit NameTable(const std::vector<NameRule>& rules);

  struct Target {
    std::string name;
    bool transposed = false;
  };

  // Empty for an ignored name.
  std::optional<Target> find(const std::string& name) const;

 private:
  struct Rule;
  std::shared_ptr<const std::vector<Rule>> rules_;
};

// Regular expressions as in NameRule. match() returns whether any of them matches.
class LOCKSTEP_API NamePatterns {
 public:
  // Errors: misuse as NameTable's.
  explicit NamePatterns(const std::vector<std::string>& patterns);
  bool match(const std::string& name) const;

 private:
  NameTable table_;  // Ignores matching names.
};

// A pattern that matches only this name.
LOCKSTEP_API std::string exact_pattern(std::string_view name);

// Removes `prefix`, such as "module." of Python's DistributedDataParallel, or "_orig_mod." of
// torch.compile.
LOCKSTEP_API NameTable without_prefix(const std::string& prefix);

}  // namespace lockstep
