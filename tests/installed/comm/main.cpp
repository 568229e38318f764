// Sums one number over all ranks, without LibTorch.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/comm/comm.h>

int main() {
  auto world = lockstep::init_process_group();
  float sum = static_cast<float>(world.rank() + 1);
  world.all_reduce({.data = &sum, .count = 1});
  const bool right = sum == static_cast<float>(world.size() * (world.size() + 1) / 2);
  const bool alone = world.size() == 1;
  lockstep::destroy_process_group(world);
  return right && !alone ? 0 : 1;
}
