// Options of bench_ddp: model and training.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

struct Options {
  std::string model = "cnn";
  std::int64_t batch = 32;     // Samples per step and rank.
  std::string device = "cpu";  // Or "cuda": each rank computes on its local_device().
  int threads = 1;             // Threads of each rank.
  int warmup = 10;             // Steps before the clock starts.
  int steps = 50;              // Timed steps.
  bool alone = false;          // The bare model without a group: the machine's limit.
  bool on_cue = false;         // The clock waits for a line from bench.py.
  bool find_unused = false;
  bool broadcast_buffers = true;
  int deterministic = 0;                     // Number of micro-batches; 0 for the usual passes.
  std::optional<bool> overlap = {};          // As in DistributedDataParallelOptions.
  std::string optimizer = "adam";            // A name of optimizer_names().
  bool bf16 = false;                         // Gradients are sent as bfloat16.
  int power_sgd = 0;                         // Rank of PowerSGD's approximation; 0 for none.
  std::optional<double> bucket_cap_mb = {};  // As in DistributedDataParallelOptions.
  bool amp = false;            // Operators compute in bfloat16, on channels_last images.
  bool memory = false;         // A memory_report() follows the steps.
  std::string operators = {};  // Folder for a record of further steps; empty for none.
};
