// SPDX-License-Identifier: Apache-2.0
#include "tools/checkpoint/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <string_view>

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

constexpr auto interval = std::chrono::milliseconds(100);
constexpr int usual_columns = 80;
constexpr std::size_t widest_bar = 40;
constexpr std::size_t narrowest_bar = 10;

int columns_of_stderr() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col
                                                                           : usual_columns;
}

void write_to_terminal(std::string_view text) {
  [[maybe_unused]] const auto ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

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

ByteBar::ByteBar(std::string label, std::uint64_t total)
    : label_(std::move(label)), total_(total), on_terminal_(::isatty(STDERR_FILENO) == 1) {}

void ByteBar::add(std::uint64_t bytes) {
  done_ += bytes;
  const auto now = Clock::now();
  if (!on_terminal_ || now - drawn_ < interval) return;
  drawn_ = now;
  visible_ = true;
  std::string line("\r");
  line += text(now, columns_of_stderr());
  line += "\033[K";
  write_to_terminal(line);
}

void ByteBar::clear() {
  if (visible_) write_to_terminal("\r\033[K");
  visible_ = false;
}

// "step-0000000100 42% [####......] 420 MB of 1.00 GB, 812 MB/s, 3 s left".
std::string ByteBar::text(Clock::time_point now, int columns) const {
  const auto room = static_cast<std::size_t>(std::max(columns - 1, 1));
  const double seconds = std::chrono::duration<double>(now - started_).count();
  const double share =
      total_ == 0 ? 1 : std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  std::array<char, 16> percent{};
  std::snprintf(percent.data(), percent.size(), " %3d%%", static_cast<int>(100 * share));

  const std::string head = label_ + percent.data();
  std::string rest(" ");  // Not `" " + ...`: GCC 12 warns about it (PR 105651).
  rest += bytes_text(done_) + " of " + bytes_text(total_);
  if (seconds > 0 && share > 0) {
    rest += ", ";
    rest += bytes_text(static_cast<std::uint64_t>(static_cast<double>(done_) / seconds)) + "/s, ";
    rest += std::to_string(static_cast<std::int64_t>(seconds / share * (1 - share))) + " s left";
  }
  constexpr std::size_t frame = 3;  // " [" and "]"
  const std::size_t taken = head.size() + rest.size() + frame;
  if (taken + narrowest_bar > room) return (head + rest).substr(0, room);
  const std::size_t width = std::min(room - taken, widest_bar);
  const auto done = static_cast<std::size_t>(share * static_cast<double>(width));
  std::string line = head + " [";
  line.append(done, '#').append(width - done, '.');
  return line + "]" + rest;
}

}  // namespace lockstep::checkpoint
