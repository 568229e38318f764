// Prints pipelines' orders: for each line of standard input, SCHEDULE RANKS MICROBATCHES
// STAGES_PER_RANK, a line for each rank, or one that begins with "refused". With two arguments it
// copies an order from one file to the other.

// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/parallel/pipeline/pipeline_order.h"

int main(int argc, char** argv) {
  if (argc == 3) {
    const auto order = lockstep::read_pipeline_order(argv[1]);
    lockstep::check_pipeline_order(order);
    lockstep::write_pipeline_order(order, argv[2]);
    return 0;
  }
  std::string schedule;
  lockstep::PipelineShape shape;
  while (std::cin >> schedule >> shape.ranks >> shape.microbatches >> shape.stages_per_rank) try {
      const auto order = make_pipeline_order(lockstep::parse_pipeline_schedule(schedule), shape);
      check_pipeline_order(order);
      std::cout << to_string(order);
    } catch (const lockstep::Error& error) {
      std::cout << "refused: " << error.what() << '\n';
    }
}
