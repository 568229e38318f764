// SPDX-License-Identifier: Apache-2.0
#include "tools/checkpoint/output.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "lockstep/checkpoint/safetensors_header.h"

namespace lockstep::checkpoint {
namespace {

std::string number_text(double value) {
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

struct ValueText {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return number_text(value); }
  std::string operator()(const std::string& value) const { return shown(value); }
  std::string operator()(const std::vector<double>& values) const {
    constexpr std::size_t most = 8;
    std::string text = "[";
    for (std::size_t i = 0; i < values.size() && i < most; ++i)
      text += (i == 0 ? "" : ", ") + number_text(values[i]);
    if (values.size() > most) text += ", ... of " + std::to_string(values.size());
    return text + "]";
  }
};

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array units{"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  if (bytes < 1000) return std::to_string(bytes) + " B";
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), value < 9.995 ? "%.2f %s" : "%.1f %s", value,
                units.at(unit));
  return text.data();
}

std::string count_text(std::size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string dtype_of(const at::Tensor& tensor) {
  return std::string(c10::getDtypeNames(tensor.scalar_type()).first);
}

std::string type_text(const at::Tensor& tensor) {
  std::string text = dtype_of(tensor) + " [";
  for (std::int64_t axis = 0; axis < tensor.dim(); ++axis)
    text += (axis == 0 ? "" : ", ") + std::to_string(tensor.size(axis));
  return text + "]";
}

std::string value_text(const StateValue& value) { return std::visit(ValueText(), value); }

}  // namespace lockstep::checkpoint
