// Under which names a module has the tensors of a file that another program wrote.
//
//   const lockstep::NameTable names{
//       {.pattern = R"(h\.(\d+)\.(.+))", .replacement = "blocks.$1.$2"},
//       {.pattern = R"(.+\.masked_bias)", .ignore = true}};
//   lockstep::load_weights(*model, "model.safetensors", names);
//
// The first rule that matches a name is used; a name that no rule matches stays as it is.
//
// Thread safety: a value; what is const may be called from any thread at once.
// Errors: misuse for a pattern that is no regular expression.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

struct NameRule {
  // A regular expression (of std::regex, ECMAScript) for the whole of a name. Names of more than
  // 1000 bytes match none.
  std::string pattern;

  // "$1" and so on are what groups of the pattern matched, "$&" is the whole name.
  std::string replacement = "$&";

  bool transpose = false;  // The file has the matrix the other way round.
  bool ignore = false;     // The module has no such tensor, and needs none.
};

class LOCKSTEP_API NameTable {
 public:
  NameTable() = default;  // All names stay.
  NameTable(std::initializer_list<NameRule> rules);
  explicit NameTable(const std::vector<NameRule>& rules);

  struct Target {
    std::string name;
    bool transposed = false;
  };

  // Nothing for what is to be ignored.
  std::optional<Target> find(const std::string& name) const;

 private:
  struct Rule;
  std::shared_ptr<const std::vector<Rule>> rules_;
};

// For a file whose names have `prefix` before the module's, such as "module." in one that Python's
// DistributedDataParallel wrote, or "_orig_mod." after torch.compile. Other names stay as they are.
LOCKSTEP_API NameTable without_prefix(const std::string& prefix);

}  // namespace lockstep
