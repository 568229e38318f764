// Measurements for bench.py:
//   bench_scale_calls cores LANE             how far apart the host's cores and ranks are
//   lockstep run -n N bench_scale_calls ranks CASE...    cases as of bench/collectives/case.h
//
// Before each timed call every rank writes its buffer, so the data are in its core's cache, as in
// training. Barriers are timed in batches.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/comm/comm.h>
#include <lockstep/launch/binding.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/collectives/case.h"
#include "bench/scale/cores.h"

namespace {

using Clock = std::chrono::steady_clock;
using bench::Case;
using bench::Memory;
using lockstep::Buffer;
using lockstep::ProcessGroup;

double seconds_of(const std::function<void()>& act) {
  const auto begin = Clock::now();
  act();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::vector<double> time_all_reduces(const Case& work, const ProcessGroup& world,
                                     const Memory& memory) {
  float* const data = memory.input;
  const std::size_t count = work.count();
  const Buffer buffer{.data = data, .count = count};
  std::vector<double> times;
  for (int call = 0; call < work.batches; ++call) {
    std::fill_n(data, count, 1.0F);
    world.barrier();
    times.push_back(seconds_of([&] { world.all_reduce(buffer); }));
    const auto sum = static_cast<float>(world.size());
    const bool right =
        call > 0 ? data[count - 1] == sum
                 : std::all_of(data, data + count, [&](float value) { return value == sum; });
    if (!right) throw std::runtime_error("all_reduce gave a wrong sum");
  }
  return times;
}

// Copies in chunks, like collectives: memcpy() of many bytes bypasses the caches.
void copy_in_chunks(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t chunk = 128 << 10;
  for (std::size_t at = 0; at < bytes; at += chunk)
    std::memcpy(to + at, from + at, std::min(chunk, bytes - at));
}

// All ranks copy concurrently, as many bytes as an all_reduce in place: the first half over the
// second one, and back.
std::vector<double> time_copies(const Case& work, const ProcessGroup& world, const Memory& memory) {
  auto* const first = reinterpret_cast<std::byte*>(memory.input);
  std::memset(first, 1, work.bytes);
  const std::size_t half = work.bytes / 2;
  std::vector<double> times;
  for (int call = 0; call < work.batches; ++call) {
    world.barrier();
    times.push_back(seconds_of([&] {
      copy_in_chunks(first + half, first, half);
      copy_in_chunks(first, first + half, half);
    }));
  }
  return times;
}

std::vector<double> time_case(const Case& work, const ProcessGroup& world, const Memory& memory) {
  if (work.operation == "barrier")
    return bench::time_batches(work, {world.rank(), world.size()}, memory,
                               [&] { world.barrier(); });
  if (work.operation == "all_reduce") return time_all_reduces(work, world, memory);
  if (work.operation == "copy") return time_copies(work, world, memory);
  throw std::invalid_argument("no operation " + work.operation);
}

// A call takes as long as its slowest rank.
void run_ranks(const std::vector<Case>& cases) {
  auto world = lockstep::init_process_group();
  const std::size_t bytes = bench::largest(cases);
  const auto block = world.allocate(bytes);
  const Memory any = bench::allocate_any(bytes);
  const Memory registered{static_cast<float*>(block.data()), nullptr};
  for (const Case& work : cases) {
    auto times = time_case(work, world, work.memory == "registered" ? registered : any);
    world.all_reduce(
        {.data = times.data(), .count = times.size(), .dtype = lockstep::DType::float64},
        lockstep::ReduceOp::max);
    if (world.rank() == 0) bench::print_figure(work, std::move(times));
  }
  lockstep::destroy_process_group(world);
}

void show_cores(std::size_t lane) {
  std::printf("cores %d\n", lockstep::usable_cores());
  for (const bench::ReachPair& pair : bench::pairs_of_host()) {
    const bench::LineTimes times = bench::time_lines(pair.cpus, lane);
    std::printf("reach %s %.2f %.2f %.2f\n", bench::name_of(pair.reach).c_str(), times.line,
                times.flags, times.stream);
  }
  for (int ranks = 2; ranks <= lockstep::usable_cores(); ++ranks) {
    const auto shares = bench::shares_of_pairs(ranks);
    std::printf("pairs %d %.4f %.4f %.4f\n", ranks, shares[0], shares[1], shares[2]);
  }
  std::printf("page %.1f\n", bench::time_page());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string what = argc > 1 ? argv[1] : "";
    if (what == "cores" && argc == 3)
      show_cores(std::stoul(argv[2]));
    else if (what == "ranks")
      run_ranks(bench::parse_cases(argc - 1, argv + 1));
    else
      throw std::invalid_argument("say `cores LANE` or `ranks CASE...`");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_scale_calls: %s\n", error.what());
    return 1;
  }
}
