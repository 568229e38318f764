// A program whose steps take a known time, for tests of `lockstep tune`:
// paced_steps BATCH MS_PER_SAMPLE MS_PER_STEP_AND_RANK [STEPS]. With 0 for the batch it fails.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/comm/comm.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <thread>

namespace {

void sleep_for(double milliseconds) {
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 64;
  const double batch = std::atof(argv[1]);
  const double step = batch * std::atof(argv[2]);
  const auto last = argc > 4 ? static_cast<std::uint64_t>(std::atoi(argv[4]))
                             : std::numeric_limits<std::uint64_t>::max();
  auto world = lockstep::init_process_group();
  if (batch == 0) throw std::runtime_error("there is nothing to train on");
  const double overhead = std::atof(argv[3]) * world.size();
  for (std::uint64_t i = 1; i <= last; ++i) {
    sleep_for(step + overhead);
    world.barrier();
    world.set_step(i);
  }
  lockstep::destroy_process_group(world);
  return 0;
}
