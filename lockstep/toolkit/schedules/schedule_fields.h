// The members of a schedule under Python's names, to check, save and load them.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/tensor/state_types.h"

namespace lockstep::schedules {

struct Range {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool without_least = false;
  bool without_most = false;
};

// Whether a saved list must have the present length.
enum class Count : std::uint8_t { any, fixed };

// Lifetime: the members outlive it.
class ScheduleFields {
 public:
  explicit ScheduleFields(std::string owner) : owner_(std::move(owner)) {}

  void add(const std::string& name, double& number, const Range& range = {});

  // `obstacle`: why the flag cannot be true, such as " is true, but ...". Empty if it can.
  void add(const std::string& name, bool& flag, const std::string& obstacle = "");

  // One number per param group.
  void add(const std::string& name, std::vector<double>& numbers);

  // As above, for an optimizer with `groups` param groups. A saved list may be shorter, but not
  // empty.
  void add(const std::string& name, std::vector<double>& numbers, std::size_t groups);

  // A list in rising order.
  void add(const std::string& name, std::vector<std::int64_t>& numbers, Count count);

  template <std::integral T>
    requires(!std::same_as<T, bool>)
  void add(const std::string& name, T& count,
           std::int64_t least = std::numeric_limits<std::int64_t>::min()) {
    constexpr bool is_narrow = sizeof(T) < sizeof(std::int64_t);
    const double most = is_narrow ? static_cast<double>(std::numeric_limits<T>::max())
                                  : std::numeric_limits<double>::infinity();
    add_count(
        name, {.least = static_cast<double>(least), .most = most},
        [&count] { return static_cast<std::int64_t>(count); },
        [&count](std::int64_t saved) { count = static_cast<T>(saved); });
  }

  // A count that is not a member: `set` gets the saved one.
  void add_count(const std::string& name, const Range& range, std::function<std::int64_t()> get,
                 std::function<void(std::int64_t)> set);

  // Saves the name of the choice. The enumeration counts from 0.
  template <class Enumeration>
  void add_choice(const std::string& name, Enumeration& choice, std::vector<std::string> names) {
    add_choice(
        name, std::move(names), [&choice] { return static_cast<std::size_t>(choice); },
        [&choice](std::size_t saved) { choice = static_cast<Enumeration>(saved); });
  }

  // Later fields are missing in Python's states.
  void begin_own() { all_are_required_ = false; }

  // The fields of element I begin with NAME.I. Loading rejects more than `size` elements.
  void add_list(const std::string& name, std::size_t size) { lists_.push_back({name, size}); }

  void add_all(const std::string& prefix, const ScheduleFields& others);

  StateValues values() const;

  // Errors: misuse for a member that is out of range.
  void require_valid() const;

  // Errors: misuse for missing values, other types, and values out of range.
  void require_loadable(const StateValues& saved) const;
  void load(const StateValues& saved) const;

 private:
  struct Field {
    std::string name;
    bool is_required = true;
    std::function<StateValue()> save;
    std::function<std::string(const StateValue&)> mismatch;  // Empty if the value fits.
    std::function<void(const StateValue&)> load;
  };

  struct List {
    std::string name;
    std::size_t size;
  };

  void add(Field field);
  void add_numbers(const std::string& name, std::vector<double>& numbers,
                   std::function<std::string(std::size_t)> mismatch_of_size);
  void add_choice(const std::string& name, std::vector<std::string> names,
                  std::function<std::size_t()> get, std::function<void(std::size_t)> set);

  const std::string owner_;
  bool all_are_required_ = true;
  std::vector<Field> fields_;
  std::vector<List> lists_;
};

}  // namespace lockstep::schedules
