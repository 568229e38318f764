// Reads environment variables. An empty variable counts as unset.
//
// Thread safety: that of the lookup; getenv() must not run beside setenv().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/base/api.h"

namespace lockstep {

class LOCKSTEP_API Variables {
 public:
  explicit Variables(std::function<const char*(const char*)> lookup) : lookup_(std::move(lookup)) {}

  bool has(const char* key) const { return text(key).has_value(); }
  std::optional<std::string> text(const char* key) const;

  // Errors: misuse, naming the variable, when it is set but is not a whole number within the type's
  // range.
  std::optional<int> number(const char* key) const;
  std::optional<std::uint64_t> id(const char* key) const;

 private:
  template <class Number>
  std::optional<Number> parsed(const char* key) const;

  std::function<const char*(const char*)> lookup_;
};

}  // namespace lockstep
