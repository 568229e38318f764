// SPDX-License-Identifier: Apache-2.0
#include "tests/engines/engine_plugin.h"

#include <dlfcn.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace lockstep::test {

const lockstep_engine& open_plugin(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto function =
      reinterpret_cast<lockstep_engine_v1_function>(dlsym(library, "lockstep_engine_v1"));
  if (function == nullptr) throw std::runtime_error(dlerror());
  const lockstep_engine& engine = *function();
  if (engine.abi != LOCKSTEP_ENGINE_ABI || engine.struct_bytes < sizeof engine)
    throw std::runtime_error(std::string(path) + " is of another ABI");
  return engine;
}

void expect_success(int result, const std::string& what, const lockstep_engine_error& error) {
  if (result != 0)
    throw std::runtime_error(what + ": fault " + std::to_string(error.fault) + ", " + error.text);
}

World identify(const lockstep_engine& engine, const void* handed_over) {
  World world{.rank = -1, .size = 0, .handle = nullptr};
  lockstep_engine_error error{};
  if (engine.identify == nullptr) throw std::runtime_error("the engine cannot identify()");
  expect_success(engine.identify(handed_over, &world.handle, &world.rank, &world.size, &error),
                 "identify", error);
  return world;
}

std::vector<std::int32_t> all_ranks(int size) {
  std::vector<std::int32_t> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Communicator::Communicator(const lockstep_engine& engine, const World& world,
                           const std::string& name, const std::vector<std::int32_t>& world_ranks)
    : engine_(engine), size_(static_cast<int>(world_ranks.size())) {
  const auto self = std::find(world_ranks.begin(), world_ranks.end(), world.rank);
  rank_ = static_cast<int>(self - world_ranks.begin());
  lockstep_engine_config config{};
  config.struct_bytes = sizeof config;
  config.rank = rank_;
  config.size = size_;
  config.world_ranks = world_ranks.data();
  config.world_size = world.size;
  config.name = name.c_str();
  config.local_size = 1;
  config.interface_name = "lo";
  config.address = "127.0.0.1";
  config.device_index = -1;
  config.timeout_ms = 60'000;
  config.world = world.handle;
  lockstep_engine_error error{};
  expect_success(engine.create(&config, &handle_, &error), "create", error);
}

Communicator::~Communicator() {
  if (handle_ != nullptr) engine_.destroy(handle_);
}

}  // namespace lockstep::test
