// What bench_ddp is told to train, and how.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

struct Options {
  std::string model = "cnn";
  std::int64_t batch = 32;  // Samples in a step, on each rank.
  int warmup = 10;          // Steps before the clock starts,
  int steps = 50;           // and those that are timed.
  bool alone = false;       // The bare model, in no group: what the machine can give.
  bool on_cue = false;      // Whether the clock waits for a line from bench.py.
  bool find_unused = false;
  bool broadcast_buffers = true;
  int deterministic = 0;             // Pieces; 0 for the usual passes.
  std::optional<bool> overlap = {};  // As DistributedDataParallelOptions has it.
  std::string optimizer = "adam";    // As make_optimizer() knows it.
  bool bf16 = false;                 // Whether gradients travel as bfloat16.
  bool memory = false;               // Whether a memory_report() follows the steps.
};
