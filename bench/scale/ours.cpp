// Measurements for bench.py:
//   bench_scale_calls cores                  how far apart the host's cores and ranks are
//   lockstep run -n N bench_scale_calls ranks OPERATION:MEMORY:BYTES:CALLS...
//
// Before each timed call every rank writes its buffer, as a training step does: the data lie in its
// own core's cache. A call without a buffer is timed in batches.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/comm/comm.h>
#include <lockstep/launch/binding.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/scale/cores.h"

namespace {

using Clock = std::chrono::steady_clock;
using lockstep::Buffer;
using lockstep::ProcessGroup;

constexpr int calls_of_batch = 32;

struct Case {
  std::string operation;
  std::string memory;  // "registered" or "any".
  std::size_t bytes = 0;
  int calls = 0;
};

Case parse_case(std::string text) {
  std::replace(text.begin(), text.end(), ':', ' ');
  std::istringstream in(text);
  Case work;
  in >> work.operation >> work.memory >> work.bytes >> work.calls;
  if (!in || work.calls < 1) throw std::invalid_argument("not a case: " + text);
  return work;
}

// A buffer of either kind of memory.
class Memory {
 public:
  Memory(const Case& work, const ProcessGroup& world) {
    if (work.memory == "registered")
      registered_ = world.allocate(work.bytes);
    else
      any_.reset(static_cast<float*>(std::aligned_alloc(64, (work.bytes + 63) / 64 * 64)));
    if (data() == nullptr) throw std::bad_alloc();
  }

  float* data() const {
    return registered_ ? static_cast<float*>(registered_->data()) : any_.get();
  }

 private:
  struct Free {
    void operator()(float* data) const { std::free(data); }
  };
  std::optional<lockstep::RegisteredMemory> registered_;
  std::unique_ptr<float, Free> any_;
};

double seconds_of(const std::function<void()>& act) {
  const auto begin = Clock::now();
  act();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::vector<double> time_barriers(const Case& work, const ProcessGroup& world) {
  std::vector<double> times;
  for (int batch = 0; batch < work.calls; ++batch)
    times.push_back(seconds_of([&] {
                      for (int i = 0; i < calls_of_batch; ++i) world.barrier();
                    }) /
                    calls_of_batch);
  return times;
}

std::vector<double> time_all_reduces(const Case& work, const ProcessGroup& world) {
  const Memory memory(work, world);
  const std::size_t count = work.bytes / sizeof(float);
  const Buffer buffer{.data = memory.data(), .count = count};
  std::vector<double> times;
  for (int call = 0; call < work.calls; ++call) {
    std::fill_n(memory.data(), count, 1.0F);
    world.barrier();
    times.push_back(seconds_of([&] { world.all_reduce(buffer); }));
    const auto sum = static_cast<float>(world.size());
    const bool right = call > 0 ? memory.data()[count - 1] == sum
                                : std::all_of(memory.data(), memory.data() + count,
                                              [&](float value) { return value == sum; });
    if (!right) throw std::runtime_error("all_reduce gave a wrong sum");
  }
  return times;
}

// All ranks copy at once.
std::vector<double> time_copies(const Case& work, const ProcessGroup& world) {
  const Memory from(work, world), to(work, world);
  std::memset(from.data(), 1, work.bytes);
  std::memset(to.data(), 2, work.bytes);
  std::vector<double> times;
  for (int call = 0; call < work.calls; ++call) {
    world.barrier();
    times.push_back(seconds_of([&] { std::memcpy(to.data(), from.data(), work.bytes); }));
  }
  return times;
}

std::vector<double> time_case(const Case& work, const ProcessGroup& world) {
  if (work.operation == "barrier") return time_barriers(work, world);
  if (work.operation == "all_reduce") return time_all_reduces(work, world);
  if (work.operation == "copy") return time_copies(work, world);
  throw std::invalid_argument("no operation " + work.operation);
}

// A call takes as long as its slowest rank; the figure is the median of the calls.
void measure(const Case& work, const ProcessGroup& world) {
  auto times = time_case(work, world);
  world.all_reduce({.data = times.data(), .count = times.size(), .dtype = lockstep::DType::float64},
                   lockstep::ReduceOp::max);
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  if (world.rank() == 0)
    std::printf("figure %s %s %zu %.5f\n", work.operation.c_str(), work.memory.c_str(), work.bytes,
                *middle * 1e6);
}

void run_ranks(const std::vector<std::string>& cases) {
  auto world = lockstep::init_process_group();
  for (const std::string& text : cases) measure(parse_case(text), world);
  lockstep::destroy_process_group(world);
}

void show_cores() {
  std::printf("cores %d\n", lockstep::usable_cores());
  for (const bench::ReachPair& pair : bench::pairs_of_host()) {
    const bench::LineTimes times = bench::time_lines(pair.cpus);
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
    if (what == "cores")
      show_cores();
    else if (what == "ranks")
      run_ranks({argv + 2, argv + argc});
    else
      throw std::invalid_argument("say `cores` or `ranks`");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_scale_calls: %s\n", error.what());
    return 1;
  }
}
