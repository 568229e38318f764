// Prints the order of DistributedSampler: a line of indices for each line of standard input, SIZE
// NUM_REPLICAS RANK EPOCH SEED SHUFFLE DROP_LAST.

// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "lockstep/data/distributed_sampler.h"

int main() {
  std::size_t size = 0;
  int num_replicas = 0;
  int rank = 0;
  std::int64_t epoch = 0;
  lockstep::DistributedSamplerOptions options;
  while (std::cin >> size >> num_replicas >> rank >> epoch >> options.seed >> options.shuffle >>
         options.drop_last) {
    lockstep::DistributedSampler sampler(size, num_replicas, rank, options);
    sampler.set_epoch(epoch);
    sampler.reset();
    while (const auto batch = sampler.next(7))
      for (const std::size_t index : *batch) std::cout << index << ' ';
    std::cout << '\n';
  }
}
