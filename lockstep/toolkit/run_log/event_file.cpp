// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/run_log/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <system_error>
#include <utility>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/wall_time.h"
#include "lockstep/checkpoint/crc32c.h"

namespace lockstep::run_log {
namespace {

namespace fs = std::filesystem;

// A message in protocol buffers' encoding.
class ProtoMessage {
 public:
  ProtoMessage& integer(unsigned field, std::uint64_t value) {
    key(field, 0);
    varint(value);
    return *this;
  }
  ProtoMessage& number(unsigned field, double value) {
    key(field, 1);
    put(value);
    return *this;
  }
  ProtoMessage& single(unsigned field, float value) {
    key(field, 5);
    bytes_ += ByteWriter(4).number(std::bit_cast<std::uint32_t>(value)).take();
    return *this;
  }
  ProtoMessage& bytes(unsigned field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  ProtoMessage& message(unsigned field, const ProtoMessage& value) {
    return bytes(field, value.bytes_);
  }
  ProtoMessage& numbers(unsigned field, std::span<const double> values) {
    key(field, 2);
    varint(values.size() * sizeof(double));
    for (const double value : values) put(value);
    return *this;
  }

  const std::string& encoded() const { return bytes_; }

 private:
  void key(unsigned field, unsigned type) { varint(field << 3 | type); }
  void put(double value) {
    bytes_ += ByteWriter(8).number(std::bit_cast<std::uint64_t>(value)).take();
  }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

ProtoMessage event(double time, std::int64_t step) {
  ProtoMessage event;
  event.number(1, time).integer(2, static_cast<std::uint64_t>(step));
  return event;
}

std::string summary_event(double time, std::int64_t step, const ProtoMessage& value) {
  return event(time, step).message(5, ProtoMessage().message(1, value)).encoded();
}

// TensorBoard reads all files with "tfevents" in their names, in name order.
fs::path new_file_in(const fs::path& folder) {
  static std::atomic<int> serial{0};
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw_errno(folder.string(), error.value());
  return folder / ("events.out.tfevents." + std::to_string(std::llround(wall_time())) + "." +
                   host_name() + "." + std::to_string(::getpid()) + "." + std::to_string(serial++));
}

std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(std::as_bytes(std::span(bytes)));
  return std::rotr(crc, 15) + 0xa282ead8U;
}

// TensorFlow's intervals (tensorflow/core/lib/histogram/histogram.cc), without the largest number.
const std::vector<double>& interval_ends() {
  static const std::vector<double> ends = [] {
    std::vector<double> positive;
    for (double end = 1e-12; end < 1e20; end *= 1.1) positive.push_back(end);
    std::vector<double> all;
    for (auto end = positive.rbegin(); end != positive.rend(); ++end) all.push_back(-*end);
    all.push_back(0);
    all.insert(all.end(), positive.begin(), positive.end());
    return all;
  }();
  return ends;
}

}  // namespace

Histogram Histogram::of(std::span<const double> values) {
  const std::vector<double>& ends = interval_ends();
  std::vector<double> counts(ends.size() + 1);
  Histogram result;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    result.min = result.count == 0 ? value : std::min(result.min, value);
    result.max = result.count == 0 ? value : std::max(result.max, value);
    ++result.count;
    result.sum += value;
    result.sum_of_squares += value * value;
    const auto end = std::ranges::upper_bound(ends, value);
    ++counts[static_cast<std::size_t>(end - ends.begin())];
  }
  // Includes the empty interval before the first one.
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const bool is_before = i + 1 < counts.size() && counts[i + 1] != 0;
    if (result.limits.empty() && counts[i] == 0 && !is_before) continue;
    result.limits.push_back(i < ends.size() ? ends[i] : std::numeric_limits<double>::max());
    result.counts.push_back(counts[i]);
  }
  while (!result.counts.empty() && result.counts.back() == 0) {
    result.counts.pop_back();
    result.limits.pop_back();
  }
  return result;
}

EventFile::EventFile(const fs::path& folder) : file_(new_file_in(folder)) {
  add_record(event(wall_time(), 0).bytes(3, "brain.Event:2").encoded());
  flush();
}

void EventFile::scalar(std::string_view tag, std::int64_t step, double time, double value) {
  ProtoMessage scalar;
  scalar.bytes(1, tag).single(2, static_cast<float>(value));
  add_record(summary_event(time, step, scalar));
}

void EventFile::histogram(std::string_view tag, std::int64_t step, double time,
                          const Histogram& histogram) {
  ProtoMessage histo;
  histo.number(1, histogram.min).number(2, histogram.max).number(3, histogram.count);
  histo.number(4, histogram.sum).number(5, histogram.sum_of_squares);
  histo.numbers(6, histogram.limits).numbers(7, histogram.counts);
  ProtoMessage value;
  value.bytes(1, tag).message(5, histo);
  add_record(summary_event(time, step, value));
}

// One string, for the plugin that displays texts.
void EventFile::text(std::string_view tag, std::int64_t step, double time, std::string_view text) {
  constexpr std::uint64_t type_string = 7;
  ProtoMessage plugin;
  plugin.message(1, ProtoMessage().bytes(1, "text"));
  ProtoMessage tensor;
  tensor.integer(1, type_string);
  tensor.message(2, ProtoMessage().message(2, ProtoMessage().integer(1, 1)));
  tensor.bytes(8, text);
  ProtoMessage value;
  value.bytes(1, std::string(tag) + "/text_summary").message(8, tensor).message(9, plugin);
  add_record(summary_event(time, step, value));
}

void EventFile::add_record(std::string_view event) {
  const std::string length = ByteWriter(8).number(std::uint64_t{event.size()}).take();
  pending_ += ByteWriter(event.size() + 16)
                  .raw(length)
                  .number(masked_crc(length))
                  .raw(event)
                  .number(masked_crc(event))
                  .take();
}

void EventFile::flush() {
  const std::string records = std::exchange(pending_, {});
  file_.write(std::as_bytes(std::span(records)));
}

}  // namespace lockstep::run_log
