// Lockstep's side of bench.py: times the cases given as arguments.
//
// Memory is "registered", "any", or "none": barrier; flag_barrier, a minimal one; memcpy_one, where
// only rank 0 copies; memcpy_all, where all ranks copy concurrently.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/comm/comm.h>

#include <cstring>
#include <exception>
#include <functional>
#include <iostream>
#include <optional>
#include <stdexcept>

#include "bench/collectives/case.h"
#include "bench/collectives/flag_barrier.h"

namespace {

using bench::Case;
using bench::Memory;
using lockstep::Buffer;
using lockstep::ProcessGroup;
using lockstep::ReduceOp;

using Call = std::function<void()>;

Call call_on_buffers(const Case& work, const ProcessGroup& world, const Memory& memory) {
  const std::size_t part = work.count() / world.size();
  const Buffer input{.data = memory.input, .count = work.count()};
  const Buffer output{.data = memory.output, .count = work.count()};
  const Buffer part_in{.data = memory.input, .count = part};
  const Buffer part_out{.data = memory.output, .count = part};
  if (work.operation == "all_reduce") return [=, &world] { world.all_reduce(input); };
  if (work.operation == "broadcast") return [=, &world] { world.broadcast(input, 0); };
  if (work.operation == "all_gather") return [=, &world] { world.all_gather(part_in, output); };
  if (work.operation == "gather")
    return [=, &world] { world.gather(part_in, world.rank() == 0 ? output : Buffer{}, 0); };
  if (work.operation == "scatter")
    return [=, &world] { world.scatter(world.rank() == 0 ? input : Buffer{}, part_out, 0); };
  if (work.operation == "reduce_scatter") {
    return [=, &world] { world.reduce_scatter(input, part_out); };
  }
  if (work.operation == "all_to_all") return [=, &world] { world.all_to_all(input, output); };
  throw std::invalid_argument("no operation " + work.operation);
}

Call call_of(const Case& work, const ProcessGroup& world, const Memory& memory,
             std::optional<bench::FlagBarrier>& flags) {
  if (work.operation == "barrier") return [&] { world.barrier(); };
  if (work.operation == "flag_barrier") {
    if (!flags) flags.emplace(world);  // Ranks of several hosts cannot share its memory.
    return [&] { flags->wait(); };
  }
  const bool copies =
      work.operation == "memcpy_all" || (work.operation == "memcpy_one" && world.rank() == 0);
  if (copies) return [=] { std::memcpy(memory.output, memory.input, work.bytes); };
  if (work.operation == "memcpy_one") return [] {};
  return call_on_buffers(work, world, memory);
}

void run(const std::vector<Case>& cases, const ProcessGroup& world) {
  const std::size_t bytes = bench::largest(cases);
  const auto input = world.allocate(bytes);
  const auto output = world.allocate(bytes);
  const Memory registered{static_cast<float*>(input.data()), static_cast<float*>(output.data())};
  const Memory any = bench::allocate_any(bytes);
  std::optional<bench::FlagBarrier> flags;
  for (const Case& work : cases) {
    const Memory& memory = work.memory == "registered" ? registered : any;
    const Call call = call_of(work, world, memory, flags);
    world.barrier();
    auto seconds = bench::time_batches(work, {world.rank(), world.size()}, memory, call);
    world.all_reduce(
        {.data = seconds.data(), .count = seconds.size(), .dtype = lockstep::DType::float64},
        ReduceOp::max);
    if (world.rank() == 0) bench::print_figure(work, std::move(seconds));
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    auto world = lockstep::init_process_group();
    run(bench::parse_cases(argc, argv), world);
    lockstep::destroy_process_group(world);
  } catch (const std::exception& error) {
    std::cerr << "bench_collectives: " << error.what() << '\n';
    return 1;
  }
}
