// Options of the examples, and their report at the end.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

struct Options {
  std::string data;
  int epochs = 2;
  // If positive, replaces `epochs`.
  std::int64_t steps = 0;
  std::optional<std::int64_t> batch_size = {};  // Per rank.
  double lr = 1e-3;
  std::uint64_t seed = 0;
  std::string device = "cpu";  // Or "cuda".
  std::string amp = {};        // "bf16" or "fp16": computes in these; empty for float32 only.
  std::string model = "cnn";   // Or "vit".
  int tp = 1;                  // Ranks that share the layers of one ViT.
  int threads = 0;             // 0: as OMP_NUM_THREADS.
  std::string json = {};
  std::string save = {};
  std::string load = {};
  bool print_hash = false;
  std::string checkpoint = {};        // A folder; empty for no checkpoints.
  std::int64_t checkpoint_every = 0;  // In steps; 0: only after the last one.
  int keep = 0;                       // Newest checkpoints to keep; 0: all.
  bool async = false;
  std::string resume = {};  // "auto", or the folder of a checkpoint.
  std::string log_samples = {};
};

struct Choices {
  std::vector<std::string> devices = {"cpu"};  // For --device; one is no option.
  std::vector<std::string> models = {"cnn"};   // For --model, with --tp; one is no option.
  bool amp = false;
};

// `data` is the default of --data. Ends the process as parse() does.
Options read_command_line(int argc, char** argv, const std::string& description,
                          const std::string& data, const Choices& choices = {});

// Ends the process after --help and, with exit code 64, after a wrong argument.
void parse(CLI::App& app, int argc, char** argv);

// To combine with CLI::Range, which accepts NaN. Returns the complaint.
std::string unless_number(const std::string& text);

// For a file that the program will write. Returns the complaint.
std::string unless_writable(const std::string& file);

// Default of --batch-size.
constexpr std::int64_t usual_batch_size = 64;

struct Report {
  double accuracy = 0;            // On the test data.
  double samples_per_second = 0;  // Over all ranks, training only.
  double seconds = 0;             // Training only.
  double loss = 0;                // Last step, averaged over ranks.
  int world_size = 1;
  std::int64_t steps = 0;
};

// Writes all of a JSON object or nothing. Throws std::runtime_error naming the file.
void write_json(const Report& report, const std::string& file);
