// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/weight_fit.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors_header.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::size_t most_pairs = 10;
constexpr std::size_t most_mismatches = 5;

// Distances are computed for this many names per list.
constexpr std::size_t most_compared = 1000;

std::string text_of(at::ScalarType type, at::IntArrayRef shape) {
  return std::string(c10::toString(type)) + " " + c10::str(shape);
}

std::size_t distance(std::string_view a, std::string_view b) {
  const std::size_t shorter = std::min(a.size(), b.size());
  const auto same = [](auto range, auto other) {
    return static_cast<std::size_t>(std::ranges::mismatch(range, other).in1 - range.begin());
  };
  const std::size_t front = same(a, b);
  const std::string_view rest_a = a.substr(front), rest_b = b.substr(front);
  std::size_t back = 0;
  while (back < std::min(rest_a.size(), rest_b.size()) &&
         rest_a[rest_a.size() - 1 - back] == rest_b[rest_b.size() - 1 - back])
    ++back;
  return std::max(a.size(), b.size()) - std::min(front + back, shorter);
}

class Fitting {
 public:
  Fitting(const StoredForms& stored, const StateTargets& targets, const LoadWeightsOptions& options)
      : stored_(stored), targets_(targets), options_(options) {}

  std::vector<std::string> run() {
    find_missing();
    for (const auto& [name, form] : stored_) {
      const auto target = targets_.find(name);
      if (target == targets_.end())
        surplus_.push_back(name);
      else
        compare(name, form, target->second);
    }
    if (!missing_.empty() || !surplus_.empty() || !mismatches_.empty())
      throw Error(Fault::misuse, message());
    require_values();
    return kept_;
  }

 private:
  // Python's save_model() writes a tensor with two names once.
  void find_missing() {
    const NamePatterns may_be_missing(options_.may_be_missing);
    std::set<std::string> loaded;
    for (const auto& [name, target] : targets_)
      if (stored_.contains(name)) loaded.insert(target.first_name);
    for (const auto& [name, target] : targets_)
      if (!stored_.contains(name) && !loaded.contains(target.first_name))
        (may_be_missing.match(name) ? kept_ : missing_).push_back(name);
  }

  void compare(const std::string& name, const StoredForm& form, const StateTarget& target) {
    const bool converts = at::isFloatingType(form.type) && at::isFloatingType(target.type);
    const bool fits_type = form.type == target.type || (converts && options_.convert_types);
    if (fits_type && form.shape == target.shape) return;
    can_convert_ = can_convert_ || (!fits_type && converts);
    note_shapes(form.shape, target.shape);
    mismatches_.push_back(both_names(name) + " is " + text_of(form.type, form.shape) +
                          " in the file" + (form.is_transposed ? " (transposed), " : ", ") +
                          text_of(target.type, target.shape) + " in the module");
  }

  void note_shapes(const std::vector<std::int64_t>& stored,
                   const std::vector<std::int64_t>& expected) {
    if (stored == expected) return;
    const bool is_transposed = stored.size() == 2 && expected.size() == 2 &&
                               stored[0] == expected[1] && stored[1] == expected[0];
    (is_transposed ? has_transposed_ : has_other_shapes_) = true;
  }

  void require_values() const {
    for (const std::string& name : kept_)
      require(targets_.at(name).has_value, [&, &lacking = name] {
        return shown(lacking) +
               " is not in the file and has no value yet, as the module was made on the meta "
               "device: call initialize() before load_weights()";
      });
  }

  std::string both_names(const std::string& name) const {
    const std::string& in_file = stored_.at(name).name;
    return shown(name) + (in_file == name ? "" : " (" + shown(in_file) + " in the file)");
  }

  std::string message() const {
    std::string text = "the tensors do not fit the module, and nothing was loaded:";
    const auto pairs = side_by_side(missing_, surplus_);
    const std::size_t count = std::min(pairs.size(), most_pairs);
    std::size_t width = 0;
    const auto left = [&](std::size_t i) {
      return pairs[i].first.empty() ? "" : shown(pairs[i].first) + " is not in the file";
    };
    for (std::size_t i = 0; i < count; ++i) width = std::max(width, left(i).size());
    for (std::size_t i = 0; i < count; ++i) {
      std::string line = left(i);
      if (!pairs[i].second.empty()) {
        line.resize(surplus_.size() == pairs.size() && missing_.empty() ? 0 : width, ' ');
        line += (line.empty() ? "" : " | ") + both_names(pairs[i].second) + " is not in the module";
      }
      text += "\n  " + line;
    }
    if (pairs.size() > count)
      text += "\n  and " + std::to_string(pairs.size() - count) + " more; in all " +
              std::to_string(missing_.size()) + " are not in the file, " +
              std::to_string(surplus_.size()) + " not in the module";
    for (std::size_t i = 0; i < std::min(mismatches_.size(), most_mismatches); ++i)
      text += "\n  " + mismatches_[i];
    if (mismatches_.size() > most_mismatches)
      text += "\n  and " + std::to_string(mismatches_.size() - most_mismatches) +
              " more of another type or shape";
    return text + remedies();
  }

  std::string remedies() const {
    std::string text;
    if (const std::string prefix = surplus_prefix(); !prefix.empty())
      return "\nThe names in the file begin with " + shown(prefix) +
             ": set names to lockstep::without_prefix(" + shown(prefix) + ")";
    if (!missing_.empty() && !surplus_.empty())
      text += "\nTo map names of the file to those of the module, set LoadWeightsOptions::names";
    else if (!missing_.empty())
      text += "\nTo keep the values of missing tensors, set LoadWeightsOptions::may_be_missing";
    else if (!surplus_.empty())
      text +=
          "\nTo leave out tensors of the file, set a NameRule with .ignore in "
          "LoadWeightsOptions::names";
    if (has_transposed_)
      text +=
          "\nTo transpose a matrix of the file, set a NameRule with .transpose in "
          "LoadWeightsOptions::names";
    if (has_other_shapes_)
      text +=
          "\nTo load tensors of other shapes, create the module with the sizes of the file. To "
          "keep "
          "the module's values, as of a new head, set a NameRule with .ignore in "
          "LoadWeightsOptions::names, and LoadWeightsOptions::may_be_missing";
    if (can_convert_)
      text += "\nTo convert floating-point types, set LoadWeightsOptions::convert_types";
    return text;
  }

  // Such as "module.", before all names of the module.
  std::string surplus_prefix() const {
    if (targets_.empty() || missing_.empty()) return {};
    const std::string& name = missing_.front();
    for (const std::string& candidate : surplus_) {
      if (!candidate.ends_with("." + name)) continue;
      const std::string prefix = candidate.substr(0, candidate.size() - name.size());
      if (std::ranges::all_of(targets_, [&](const auto& target) {
            return stored_.contains(prefix + target.first);
          }))
        return prefix;
    }
    return {};
  }

  const StoredForms& stored_;
  const StateTargets& targets_;
  const LoadWeightsOptions& options_;
  std::vector<std::string> kept_;
  std::vector<std::string> missing_;
  std::vector<std::string> surplus_;
  std::vector<std::string> mismatches_;
  bool can_convert_ = false;
  bool has_transposed_ = false;    // Whether a matrix's shape is reversed.
  bool has_other_shapes_ = false;  // Whether another shape differs.
};

}  // namespace

std::vector<std::string> fit(const StoredForms& stored, const StateTargets& targets,
                             const LoadWeightsOptions& options) {
  return Fitting(stored, targets, options).run();
}

std::vector<std::pair<std::string, std::string>> side_by_side(
    const std::vector<std::string>& missing, const std::vector<std::string>& surplus) {
  using Pair = std::tuple<std::size_t, std::size_t, std::size_t>;  // Distance and indices.
  std::vector<Pair> distances;
  for (std::size_t i = 0; i < std::min(missing.size(), most_compared); ++i)
    for (std::size_t j = 0; j < std::min(surplus.size(), most_compared); ++j)
      distances.emplace_back(distance(missing[i], surplus[j]), i, j);
  std::ranges::sort(distances);
  std::vector<bool> is_left_used(missing.size()), is_right_used(surplus.size());
  std::vector<std::pair<std::string, std::string>> lines;
  for (const auto& [unused, i, j] : distances) {
    if (is_left_used[i] || is_right_used[j]) continue;
    is_left_used[i] = is_right_used[j] = true;
    lines.emplace_back(missing[i], surplus[j]);
  }
  for (std::size_t i = 0; i < missing.size(); ++i)
    if (!is_left_used[i]) lines.emplace_back(missing[i], "");
  for (std::size_t j = 0; j < surplus.size(); ++j)
    if (!is_right_used[j]) lines.emplace_back("", surplus[j]);
  return lines;
}

}  // namespace lockstep::checkpoint
