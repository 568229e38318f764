// An event file of TensorBoard: scalars, histograms and texts. It is a sequence of TFRecords, each
// an Event in protocol buffers' encoding, with its length and masked CRC-32C values
// (tensorflow/core/lib/io/record_writer.h, tensorboard/compat/proto/event.proto). Whole records are
// appended, so a killed run's file can be loaded.
//
// Thread safety: none. Errors: system.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/output_file.h"

namespace lockstep::run_log {

struct Histogram {
  double min = 0;
  double max = 0;
  double count = 0;
  double sum = 0;
  double sum_of_squares = 0;
  std::vector<double> limits;  // Upper ends of the intervals.
  std::vector<double> counts;

  // Uses TensorFlow's intervals, which grow by a tenth each. Omits values that are not finite.
  static Histogram of(std::span<const double> values);
};

class EventFile {
 public:
  // Creates `folder` and a new file in it.
  explicit EventFile(const std::filesystem::path& folder);

  // Times are seconds since 1970. Nothing is written before flush().
  void scalar(std::string_view tag, std::int64_t step, double time, double value);
  void histogram(std::string_view tag, std::int64_t step, double time, const Histogram& histogram);
  void text(std::string_view tag, std::int64_t step, double time, std::string_view text);

  // After an Error the data is lost.
  void flush();

 private:
  void add_record(std::string_view event);

  OutputFile file_;
  std::string pending_;
};

}  // namespace lockstep::run_log
