// A rank of a job that an engine's own launcher has started. It opens a plugin and uses only its
// ABI.
//
//   engine_abi_rank PLUGIN collectives     compares the engine's results with serial computation
//   engine_abi_rank PLUGIN identify        gets its rank, creates no communicator, and exits
//   engine_abi_rank PLUGIN refused WORDS   expects probe()/identify() to fail with these words
//   engine_abi_rank PLUGIN deserted        rank 0 exits with code 3 while the others wait for it

// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/buffer.h"
#include "tests/engines/engine_checks.h"
#include "tests/rigs/engine_call.h"

namespace {

using lockstep::test::World;

void collectives(const lockstep_engine& engine) {
  const World world = lockstep::test::identify(engine, nullptr);
  const int compared = lockstep::test::check_engine(engine, world);
  if (compared < 1000) throw std::runtime_error("only " + std::to_string(compared) + " results");
  if (world.rank == 0)
    std::cout << "all of " << world.size << " ranks are as they should be" << std::endl;
}

void refused(const lockstep_engine& engine, const std::vector<std::string_view>& words) {
  char version[512] = {};
  lockstep_engine_error error{};
  const void* world = nullptr;
  std::int32_t rank = -1;
  std::int32_t size = -1;
  if (engine.probe(version, sizeof version, &error) == 0 &&
      engine.identify(nullptr, &world, &rank, &size, &error) == 0)
    throw std::runtime_error("not refused, but rank " + std::to_string(rank) + " of " +
                             std::to_string(size));
  if (error.fault != static_cast<std::int32_t>(lockstep::Fault::unsupported))
    throw std::runtime_error("fault " + std::to_string(error.fault) + ": " + error.text);
  for (const std::string_view word : words)
    if (std::string_view(error.text).find(word) == std::string_view::npos)
      throw std::runtime_error("no '" + std::string(word) + "' in: " + error.text);
  std::cout << "refused: " + std::string(error.text) + "\n" << std::flush;
}

void deserted(const lockstep_engine& engine) {
  const World world = lockstep::test::identify(engine, nullptr);
  const lockstep::test::Communicator all(engine, world, "all",
                                         lockstep::test::all_ranks(world.size));
  if (world.rank == 0) std::exit(3);
  float one = 1;
  lockstep_buffer data{};
  data.data = &one;
  data.count = 1;
  data.dtype = static_cast<std::uint8_t>(lockstep::DType::float32);
  lockstep_engine_error error{};
  lockstep::test::run(engine, all.handle(), lockstep::Operation::all_reduce, {.output = data},
                      &error);
}

void run(const std::vector<std::string_view>& words) {
  if (words.size() < 2) throw std::invalid_argument("engine_abi_rank PLUGIN MODE");
  const lockstep_engine& engine = lockstep::test::open_plugin(words[0].data());
  const std::string_view mode = words[1];
  if (mode == "collectives")
    collectives(engine);
  else if (mode == "identify")
    lockstep::test::identify(engine, nullptr);
  else if (mode == "refused")
    refused(engine, {words.begin() + 2, words.end()});
  else if (mode == "deserted")
    deserted(engine);
  else
    throw std::invalid_argument("no mode " + std::string(mode));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "engine_abi_rank: " << error.what() << std::endl;
    return 1;
  }
}
