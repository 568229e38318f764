// What the examples are told, and what they tell at the end.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

struct Options {
  std::string data;
  int epochs = 2;
  std::int64_t steps = 0;  // When positive, training ends after so many, whatever `epochs` says.
  std::optional<std::int64_t> batch_size = {};  // On each rank.
  double lr = 1e-3;
  std::uint64_t seed = 0;
  std::string device = "cpu";  // Or "cuda".
  int threads = 0;             // 0: as OMP_NUM_THREADS says.
  std::string json = {};
  std::string save = {};
  std::string load = {};
  bool print_hash = false;
  std::string checkpoint = {};        // A folder; none without.
  std::int64_t checkpoint_every = 0;  // Steps; 0: only after the last.
  int keep = 0;                       // Of the newest checkpoints; 0: all.
  bool async = false;
  std::string resume = {};  // "auto", or the folder of a checkpoint.
  std::string log_samples = {};
};

// `data` is where the dataset is unless --data says otherwise. Of `devices` --device takes one;
// with a single one there is no such option. Ends the process after --help and,
// with exit code 64, after a wrong argument.
Options read_command_line(int argc, char** argv, const std::string& description,
                          const std::string& data,
                          const std::vector<std::string>& devices = {"cpu"});

// What --batch-size is when nothing says otherwise.
constexpr std::int64_t usual_batch_size = 64;

struct Report {
  double accuracy = 0;            // On the test data.
  double samples_per_second = 0;  // Of all ranks together, in training alone.
  double seconds = 0;             // Of training.
  double loss = 0;                // Of the last step, averaged over ranks.
  int world_size = 1;
  std::int64_t steps = 0;
};

// As a JSON object, written whole or not at all. Throws std::runtime_error naming the file.
void write_json(const Report& report, const std::string& file);
