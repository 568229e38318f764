// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/schedules/schedule_fields.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>
#include <utility>
#include <variant>

#include "lockstep/base/error.h"

namespace lockstep::schedules {
namespace {

constexpr const char* other_type = " has another type";

// Python may save integers where a float is expected.
std::optional<double> number_in(const StateValue& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* count = std::get_if<std::int64_t>(&value)) return static_cast<double>(*count);
  return std::nullopt;
}

std::string mismatch_of(double number, const Range& range) {
  const bool is_high = range.without_least ? number > range.least : number >= range.least;
  const bool is_low = range.without_most ? number < range.most : number <= range.most;
  if (is_high && is_low) return "";
  std::ostringstream text;
  text << " must be";
  if (std::isfinite(range.least))
    text << (range.without_least ? " greater than " : " at least ") << range.least;
  if (std::isfinite(range.least) && std::isfinite(range.most)) text << " and";
  if (std::isfinite(range.most))
    text << (range.without_most ? " less than " : " at most ") << range.most;
  text << ", and is " << number;
  return text.str();
}

// Whether a double represents this whole number and its neighbours exactly.
bool is_whole(double number) { return std::abs(number) < 0x1p53 && number == std::trunc(number); }

std::string sizes_text(std::size_t found, std::size_t expected) {
  std::string text = " has ";
  return text += std::to_string(found) + " numbers instead of " + std::to_string(expected);
}

}  // namespace

void ScheduleFields::add(Field field) {
  field.is_required = all_are_required_;
  fields_.push_back(std::move(field));
}

void ScheduleFields::add(const std::string& name, double& number, const Range& range) {
  add({.name = name,
       .save = [&number] { return number; },
       .mismatch = [range](const StateValue& value) -> std::string {
         const std::optional<double> found = number_in(value);
         return found ? mismatch_of(*found, range) : other_type;
       },
       .load = [&number](const StateValue& value) { number = *number_in(value); }});
}

void ScheduleFields::add(const std::string& name, bool& flag, const std::string& obstacle) {
  add({.name = name,
       .save = [&flag] { return flag; },
       .mismatch = [obstacle](const StateValue& value) -> std::string {
         const auto* found = std::get_if<bool>(&value);
         if (found == nullptr) return other_type;
         return *found ? obstacle : "";
       },
       .load = [&flag](const StateValue& value) { flag = std::get<bool>(value); }});
}

void ScheduleFields::add_numbers(const std::string& name, std::vector<double>& numbers,
                                 std::function<std::string(std::size_t)> mismatch_of_size) {
  add({.name = name,
       .save = [&numbers] { return numbers; },
       .mismatch = [mismatch_of_size =
                        std::move(mismatch_of_size)](const StateValue& value) -> std::string {
         const auto* found = std::get_if<std::vector<double>>(&value);
         return found == nullptr ? other_type : mismatch_of_size(found->size());
       },
       .load = [&numbers](
                   const StateValue& value) { numbers = std::get<std::vector<double>>(value); }});
}

void ScheduleFields::add(const std::string& name, std::vector<double>& numbers) {
  add_numbers(name, numbers, [size = numbers.size()](std::size_t found) {
    return found == size ? "" : sizes_text(found, size);
  });
}

void ScheduleFields::add(const std::string& name, std::vector<double>& numbers,
                         std::size_t groups) {
  add_numbers(name, numbers, [groups](std::size_t found) {
    return found > 0 && found <= groups ? "" : sizes_text(found, groups);
  });
}

void ScheduleFields::add(const std::string& name, std::vector<std::int64_t>& numbers, Count count) {
  add({.name = name,
       .save = [&numbers] { return std::vector<double>(numbers.begin(), numbers.end()); },
       .mismatch = [count, size = numbers.size()](const StateValue& value) -> std::string {
         const auto* found = std::get_if<std::vector<double>>(&value);
         if (found == nullptr) return other_type;
         if (count == Count::fixed && found->size() != size) return sizes_text(found->size(), size);
         if (!std::ranges::all_of(*found, is_whole)) return " must be whole numbers";
         return std::ranges::is_sorted(*found) ? "" : " must rise";
       },
       .load =
           [&numbers](const StateValue& value) {
             numbers.clear();
             for (const double number : std::get<std::vector<double>>(value))
               numbers.push_back(std::llround(number));
           }});
}

void ScheduleFields::add_count(const std::string& name, const Range& range,
                               std::function<std::int64_t()> get,
                               std::function<void(std::int64_t)> set) {
  add({.name = name,
       .save = [get = std::move(get)] { return get(); },
       .mismatch = [range](const StateValue& value) -> std::string {
         const auto* found = std::get_if<std::int64_t>(&value);
         return found == nullptr ? other_type : mismatch_of(static_cast<double>(*found), range);
       },
       .load = [set = std::move(set)](
                   const StateValue& value) { set(std::get<std::int64_t>(value)); }});
}

void ScheduleFields::add_choice(const std::string& name, std::vector<std::string> names,
                                std::function<std::size_t()> get,
                                std::function<void(std::size_t)> set) {
  const auto found_in = [names](const StateValue& value) -> std::optional<std::size_t> {
    const auto* text = std::get_if<std::string>(&value);
    const auto found = text == nullptr ? names.end() : std::ranges::find(names, *text);
    if (found == names.end()) return std::nullopt;
    return static_cast<std::size_t>(found - names.begin());
  };
  add({.name = name,
       .save = [names, get = std::move(get)] { return names.at(get()); },
       .mismatch = [found_in](const StateValue& value) -> std::string {
         return found_in(value) ? "" : " is none of its choices";
       },
       .load = [found_in,
                set = std::move(set)](const StateValue& value) { set(*found_in(value)); }});
}

void ScheduleFields::add_all(const std::string& prefix, const ScheduleFields& others) {
  for (Field field : others.fields_) {
    field.name = prefix + field.name;
    fields_.push_back(std::move(field));
  }
  for (const List& list : others.lists_) add_list(prefix + list.name, list.size);
}

StateValues ScheduleFields::values() const {
  StateValues values;
  for (const Field& field : fields_) values.emplace(field.name, field.save());
  return values;
}

void ScheduleFields::require_valid() const {
  for (const Field& field : fields_) {
    const std::string mismatch = field.mismatch(field.save());
    require(mismatch.empty(), [&] { return owner_ + ": " + field.name + mismatch; });
  }
}

void ScheduleFields::require_loadable(const StateValues& saved) const {
  for (const Field& field : fields_) {
    const auto found = saved.find(field.name);
    require(found != saved.end() || !field.is_required,
            [&] { return owner_ + ": " + field.name + " was not saved"; });
    if (found == saved.end()) continue;
    const std::string mismatch = field.mismatch(found->second);
    require(mismatch.empty(), [&] { return owner_ + ": the saved " + field.name + mismatch; });
  }
  for (const List& list : lists_) {
    const std::string next = list.name + '.' + std::to_string(list.size) + '.';
    const auto found = saved.lower_bound(next);
    require(found == saved.end() || !found->first.starts_with(next), [&] {
      return owner_ + ": more " + list.name + " were saved than there are, which are " +
             std::to_string(list.size);
    });
  }
}

void ScheduleFields::load(const StateValues& saved) const {
  for (const Field& field : fields_)
    if (const auto found = saved.find(field.name); found != saved.end()) field.load(found->second);
}

}  // namespace lockstep::schedules
