// An engine's own all_reduce, for bench.py, without Lockstep's core. The first argument names the
// engine, the others the cases.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/engine.h"

#include <algorithm>
#include <exception>
#include <iostream>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "bench/collectives/case.h"
#include "lockstep/comm/engine/plugin_communicator.h"
#include "lockstep/comm/hosts/job_store.h"
#include "lockstep/job/environment.h"
#include "lockstep/job/network.h"

namespace {

using bench::Case;
using lockstep::Buffer;

struct World {
  lockstep::LaunchEnvironment who;
  lockstep::JobStore store;
  std::unique_ptr<lockstep::PluginCommunicator> communicator;
};

World join(const char* engine) {
  World world{.who = lockstep::read_environment(), .store = {}, .communicator = {}};
  auto& who = world.who;
  lockstep::comm::LateRanks late(who.rank, lockstep::InitOptions().warn_after);
  world.store =
      lockstep::open_job_store(who, {}, "", lockstep::in(lockstep::default_timeout), late);
  lockstep::CommunicatorOptions options{
      .engine = &lockstep::open_engine(engine),
      .rank = who.rank,
      .world_ranks = std::vector<int>(static_cast<std::size_t>(who.world_size)),
      .world_size = who.world_size,
      .name = "bench",
      .local = {who.local_rank, who.local_world_size},
      .interface = lockstep::choose_interface("", world.store.host),
      .store = world.store.store};
  std::iota(options.world_ranks.begin(), options.world_ranks.end(), 0);
  world.communicator = lockstep::make_communicator(options);
  return world;
}

// Gathers all times and computes their maxima here, because an engine may lack maxima.
void slowest_of_all(std::vector<double>& seconds, const World& world) {
  const auto ranks = static_cast<std::size_t>(world.who.world_size);
  std::vector<double> all(seconds.size() * ranks);
  world.communicator->run(
      {.signature = {.count = seconds.size(), .operation = lockstep::Operation::all_gather},
       .input = lockstep::buffer_of(seconds),
       .output = lockstep::buffer_of(all)});
  for (std::size_t i = 0; i < all.size(); ++i) {
    double& slowest = seconds[i % seconds.size()];
    slowest = std::max(slowest, all[i]);
  }
}

void run(const std::vector<Case>& cases, const World& world) {
  const auto all_reduce = [&](const Buffer& data) {
    world.communicator->run(
        {.signature = {.count = data.count, .operation = lockstep::Operation::all_reduce},
         .output = data});
  };
  const bench::Rank rank{world.who.rank, world.who.world_size};
  const bench::Memory memory = bench::allocate_any(bench::largest(cases));
  for (const Case& work : cases) {
    if (work.operation != "all_reduce")
      throw std::invalid_argument("no operation " + work.operation);
    const Buffer data{.data = memory.input, .count = work.count()};
    float barrier = 0;
    all_reduce({.data = &barrier, .count = 1});
    auto seconds = bench::time_batches(work, rank, memory, [&] { all_reduce(data); });
    slowest_of_all(seconds, world);
    if (rank.rank == 0) bench::print_figure(work, std::move(seconds));
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) throw std::invalid_argument("no engine is named");
    run(bench::parse_cases(argc - 1, argv + 1), join(argv[1]));
  } catch (const std::exception& error) {
    std::cerr << "bench_hosts_engine: " << error.what() << '\n';
    return 1;
  }
}
