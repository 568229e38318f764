// Lockstep's side of ddp_test.py: every scenario, one after the other.
//   ddp_train OVERLAP FOLDER RESULTS, under a launcher
// FOLDER holds inputs and the weights of each model; RESULTS gets SCENARIO.RANK.

// SPDX-License-Identifier: Apache-2.0
#include <ATen/Version.h>

#include <fstream>
#include <iostream>

#include "tests/python/ddp_scenarios.h"

namespace {

void run(void (*scenario)(Rig&), const char* name, Rig& rig) {
  try {
    scenario(rig);
  } catch (const std::exception& error) {
    throw std::runtime_error(std::string(name) + ": " + error.what());
  }
}

void run_all(const std::filesystem::path& folder, const std::filesystem::path& results,
             bool overlap) {
  torch::set_num_threads(1);
  auto world = lockstep::init_process_group();
  Rig::Inputs inputs;
  for (auto& [name, tensor] : lockstep::load_safetensors(folder / "inputs").tensors)
    inputs.emplace(name, tensor);
  const std::string rank = std::to_string(world.rank());
  for (const auto& scenarios : {gradient_scenarios(), unused_scenarios(), buffer_scenarios(),
                                zero_scenarios(), script_scenarios(), sparse_scenarios()})
    for (const auto& [name, scenario] : scenarios) {
      Rig rig(world, folder, inputs, overlap);
      run(scenario, name, rig);
      lockstep::save_safetensors(results / (std::string(name) + "." + rank), rig.take_result());
    }
  std::ofstream(results / ("config." + rank)) << at::show_config();
  lockstep::destroy_process_group(world);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 64;
  try {
    run_all(argv[2], argv[3], std::string(argv[1]) == "1");
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
