// SPDX-License-Identifier: Apache-2.0
#include "tests/engines/engine_checks.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/engines/collective_checks.h"
#include "tests/engines/serial.h"

namespace lockstep::test {
namespace {

// Checks the same ranks in the opposite order, and each pair of neighbours.
int check_subgroups(const lockstep_engine& engine, const World& world) {
  std::vector<std::int32_t> ranks = all_ranks(world.size);
  std::reverse(ranks.begin(), ranks.end());
  int compared = check_some_collectives(Communicator(engine, world, "reversed", ranks));
  for (int first = 0; first + 1 < world.size; ++first)
    if (world.rank == first || world.rank == first + 1)
      compared += check_some_collectives(
          Communicator(engine, world, "pair " + std::to_string(first), {first, first + 1}));
  return compared;
}

// Two threads of each rank create and use communicators, in any order.
void check_threads(const lockstep_engine& engine, const World& world) {
  const auto use = [&](const std::string& name) {
    for (int round = 0; round < 10; ++round) {
      const Communicator communicator(engine, world, name + std::to_string(round),
                                      all_ranks(world.size));
      for (int i = 0; i < 10; ++i) check_some_collectives(communicator);
    }
  };
  const auto use_or_end = [&](const std::string& name) {
    try {
      use(name);
    } catch (const std::exception& error) {
      std::cerr << name << "thread: " + std::string(error.what()) + "\n";
      std::_Exit(1);  // Does not wait for the other thread, which may wait for this rank forever.
    }
  };
  std::thread other([&] { use_or_end("the other "); });
  use_or_end("the first ");
  other.join();
}

void check_tell_all(const lockstep_engine& engine, const World& world) {
  for (const std::size_t bytes : {0, 1, 4000}) {
    Bytes data = elements(DType::uint8, bytes, world.rank);
    lockstep_engine_error error{};
    expect_success(engine.tell_all(world.handle, data.data(), bytes, &error), "tell_all", error);
    if (data != elements(DType::uint8, bytes, 0))
      throw std::runtime_error("tell_all: not what rank 0 told");
  }
}

}  // namespace

int check_engine(const lockstep_engine& engine, const World& world) {
  char version[512] = {};
  lockstep_engine_error error{};
  expect_success(engine.probe(version, sizeof version, &error), "probe", error);
  if (*version == '\0' || std::strchr(version, '\n') != nullptr)
    throw std::runtime_error("probe: not one line: " + std::string(version));

  check_tell_all(engine, world);
  int compared = check_collectives(Communicator(engine, world, "all", all_ranks(world.size)));
  compared += check_subgroups(engine, world);
  check_threads(engine, world);
  return compared;
}

}  // namespace lockstep::test
