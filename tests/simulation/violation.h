// A violated invariant of a simulation.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>

#include "tests/simulation/simulation.h"

namespace lockstep::simulation {

struct Violation {
  std::string rule;  // A short name.
  std::string text;
};

class FirstViolation {
 public:
  explicit FirstViolation(Simulation& simulation) : simulation_(simulation) {}

  // Ends the run. Later reports do nothing.
  void report(std::string_view rule, const std::string& text) {
    if (found_) return;
    found_ = Violation{std::string(rule), text};
    simulation_.trace(fmt::format("VIOLATION of '{}': {}", rule, text));
    simulation_.end();
  }

  const std::optional<Violation>& found() const { return found_; }

 private:
  Simulation& simulation_;
  std::optional<Violation> found_;
};

}  // namespace lockstep::simulation
