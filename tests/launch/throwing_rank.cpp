// Rank 1 throws, the others wait for it: throwing_rank [record], for exceptions_test.py.

// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>
#include <string_view>

#include "lockstep/comm/process_group.h"
#include "lockstep/job/record.h"

namespace {

void train() {
  lockstep::ProcessGroup group = lockstep::init_process_group();
  group.barrier();
  if (group.rank() == 1) throw std::runtime_error("loss is nan");
  group.barrier();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "record") return lockstep::record(train);
  train();
}
