// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "tools/checkpoint/commands.h"
#include "tools/checkpoint/output.h"
#include "tools/checkpoint/source.h"

namespace lockstep::checkpoint {
namespace {

struct Unequal {
  std::int64_t count = 0;
  std::int64_t incomparable = 0;  // Elements of `count` with a NaN.
  double largest = 0;             // Largest absolute difference of the others.
};

void add(Unequal& unequal, const at::Tensor& a, const at::Tensor& b) {
  const auto bytes = static_cast<std::int64_t>(a.element_size());
  const at::Tensor differ =
      a.view(at::kByte).ne(b.view(at::kByte)).view({a.numel(), bytes}).any(/*dim=*/1);
  const at::ScalarType wide = a.is_complex() ? at::kComplexDouble : at::kDouble;
  const at::Tensor distance =  // LibTorch cannot select elements of 8-bit floats.
      (a.to(wide).masked_select(differ) - b.to(wide).masked_select(differ)).abs();
  const at::Tensor numbers = distance.masked_select(distance.isnan().logical_not());
  unequal.count += distance.numel();
  unequal.incomparable += distance.numel() - numbers.numel();
  if (numbers.numel() > 0)
    unequal.largest = std::max(unequal.largest, numbers.max().item<double>());
}

// All at once would take thrice the tensors' memory.
Unequal compare(const at::Tensor& a, const at::Tensor& b) {
  constexpr std::int64_t chunk = 1 << 20;
  Unequal unequal;
  const at::Tensor x = a.contiguous().view(-1);
  const at::Tensor y = b.contiguous().view(-1);
  if (x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0)
    return unequal;
  for (std::int64_t begin = 0; begin < x.numel(); begin += chunk) {
    const std::int64_t length = std::min(chunk, x.numel() - begin);
    add(unequal, x.narrow(0, begin, length), y.narrow(0, begin, length));
  }
  return unequal;
}

std::string text_of(const Unequal& unequal, std::int64_t elements) {
  std::string text =
      std::to_string(unequal.count) + " of " + std::to_string(elements) + " elements differ";
  if (unequal.count > unequal.incomparable)
    text += ", by " + value_text(unequal.largest) + " at most";
  if (unequal.incomparable > 0)
    text += ", " + std::to_string(unequal.incomparable) + " of them no numbers";
  return text;
}

class Comparison {
 public:
  Comparison(const Source& a, const Source& b) : a_(a), b_(b) {}

  bool different() const { return different_; }

  // Values only of two checkpoints: weights have none.
  void compare_parts(const std::vector<std::string>& parts) {
    const bool values = a_.step() && b_.step();
    if (values && *a_.step() != *b_.step())
      say("step: " + std::to_string(*a_.step()) + " in A, " + std::to_string(*b_.step()) + " in B");
    ByteBar bar("comparing", bytes_in_both(parts));
    for (const std::string& part : parts) {
      if (!only_in_one(part, has(a_, part), has(b_, part), "")) {
        compare_tensors(part, bar);
        if (values) compare_values(part);
      }
    }
  }

 private:
  static bool has(const Source& source, const std::string& part) {
    const auto parts = source.parts();
    return std::ranges::count(parts, part) != 0;
  }

  void say(const std::string& text) {
    different_ = true;
    print(text + "\n");
  }

  bool only_in_one(const std::string& what, bool in_a, bool in_b, const std::string& more) {
    if (in_a != in_b) say(what + ": only in " + (in_a ? "A" : "B") + more);
    return in_a != in_b;
  }

  std::uint64_t bytes_in_both(const std::vector<std::string>& parts) const {
    std::uint64_t bytes = 0;
    for (const std::string& part : parts)
      if (has(a_, part) && has(b_, part)) bytes += bytes_of(a_.contents(part));
    return bytes;
  }

  void compare_tensors(const std::string& part, ByteBar& bar) {
    const auto& in_a = a_.contents(part).tensors;
    const auto& in_b = b_.contents(part).tensors;
    std::set<std::string> names;
    for (const auto* tensors : {&in_a, &in_b})
      for (const auto& [name, tensor] : *tensors) names.insert(name);
    for (const std::string& name : names) {
      const auto a = in_a.find(name);
      const auto b = in_b.find(name);
      const bool has_a = a != in_a.end();
      const bool has_b = b != in_b.end();
      bar.clear();
      const std::string type = ", " + type_text((has_a ? a : b)->second.data);
      if (!only_in_one(part + " " + shown(name), has_a, has_b, type))
        compare_tensor(part, name, a->second.data, b->second.data);
      bar.add(has_a ? a->second.data.nbytes() : 0);
    }
  }

  void compare_tensor(const std::string& part, const std::string& name, const at::Tensor& a,
                      const at::Tensor& b) {
    const std::string what = part + " " + shown(name) + ": ";
    if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes())
      return say(what + type_text(a) + " in A, " + type_text(b) + " in B");
    const Unequal unequal = compare(a_.read(part, name), b_.read(part, name));
    if (unequal.count > 0) say(what + text_of(unequal, a.numel()));
  }

  void compare_values(const std::string& part) {
    const StateValues& in_a = a_.contents(part).values;
    const StateValues& in_b = b_.contents(part).values;
    StateValues all = in_a;
    all.insert(in_b.begin(), in_b.end());
    for (const auto& [name, value] : all) {
      const auto a = in_a.find(name);
      const auto b = in_b.find(name);
      const std::string what = part + " " + shown(name);
      if (only_in_one(what, a != in_a.end(), b != in_b.end(), ", " + value_text(value))) continue;
      if (same(a->second, b->second)) continue;
      say(what + ": " + value_text(a->second) + " in A, " + value_text(b->second) + " in B");
    }
  }

  static bool same(const StateValue& a, const StateValue& b) {
    const auto number = [](double x, double y) {
      return x == y || (std::isnan(x) && std::isnan(y));
    };
    if (a.index() != b.index()) return false;
    if (const auto* x = std::get_if<double>(&a)) return number(*x, std::get<double>(b));
    if (const auto* x = std::get_if<std::vector<double>>(&a))
      return std::ranges::equal(*x, std::get<std::vector<double>>(b), number);
    return a == b;
  }

  const Source& a_;
  const Source& b_;
  bool different_ = false;
};

}  // namespace

int diff(const DiffOptions& options) {
  const bool files = kind_of(options.a) == Kind::weights || kind_of(options.b) == Kind::weights;
  const std::string part = options.part.empty() && files ? "model" : options.part;
  const auto a = open_source(options.a, part);
  const auto b = open_source(options.b, part);
  std::set<std::string> parts;
  for (const Source* source : {a.get(), b.get()})
    for (const std::string& each : source->parts()) parts.insert(each);
  if (!part.empty()) {
    require_part(options.a, a->parts(), part);
    require_part(options.b, b->parts(), part);
    parts = {part};
  }
  Comparison comparison(*a, *b);
  comparison.compare_parts({parts.begin(), parts.end()});
  return comparison.different() ? 1 : 0;
}

}  // namespace lockstep::checkpoint
