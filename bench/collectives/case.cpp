// SPDX-License-Identifier: Apache-2.0
#include "bench/collectives/case.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <sstream>
#include <stdexcept>

namespace bench {

namespace {

bool in_place(const Case& work) {
  return work.operation == "all_reduce" || work.operation == "broadcast";
}

void reset(const Case& work, Rank rank, const Memory& memory) {
  const bool receives = work.operation == "broadcast" && rank.rank != 0;
  std::fill_n(memory.input, work.count(), receives ? 0.0F : 1.0F);
  std::fill_n(memory.output, work.count(), 0.0F);
}

// Checks each element after the first call, according to the operation.
void check(const Case& work, Rank rank, const Memory& memory) {
  if (work.memory == "none" || (work.operation == "gather" && rank.rank != 0)) return;
  const bool sums = work.operation == "all_reduce" || work.operation == "reduce_scatter";
  const float expected = sums ? static_cast<float>(rank.size) : 1.0F;
  const bool gives_part = work.operation == "reduce_scatter" || work.operation == "scatter";
  const std::size_t count = gives_part ? work.count() / rank.size : work.count();
  const float* result = in_place(work) ? memory.input : memory.output;
  if (std::any_of(result, result + count, [=](float value) { return value != expected; })) {
    throw std::runtime_error(work.operation + " gave a wrong result");
  }
}

int calls_before_infinity(const Case& work, Rank rank) {
  const int doublings = std::max<int>(1, std::bit_width(static_cast<unsigned>(rank.size - 1)));
  return work.operation == "all_reduce" ? 120 / doublings : 1 << 30;
}

}  // namespace

Case parse_case(std::string_view text) {
  Case work;
  std::string fields(text);
  std::replace(fields.begin(), fields.end(), ':', ' ');
  std::istringstream in(fields);
  in >> work.operation >> work.memory >> work.bytes >> work.warmup >> work.batches >> work.batch;
  if (!in) throw std::invalid_argument("not a case: " + std::string(text));
  return work;
}

std::vector<Case> parse_cases(int argc, char** argv) {
  std::vector<Case> cases;
  for (int i = 1; i < argc; ++i) cases.push_back(parse_case(argv[i]));
  return cases;
}

std::size_t largest(const std::vector<Case>& cases) {
  std::size_t bytes = 64;
  for (const Case& work : cases) bytes = std::max(bytes, work.bytes);
  return (bytes + 63) / 64 * 64;
}

Memory allocate_any(std::size_t bytes) {
  const auto one = [=] {
    void* data = std::aligned_alloc(64, bytes);
    if (data == nullptr) throw std::bad_alloc();
    return static_cast<float*>(data);
  };
  return {one(), one()};
}

std::vector<double> time_batches(const Case& work, Rank rank, const Memory& memory,
                                 const std::function<void()>& call) {
  int calls = 0;
  const auto begin = [&] {
    reset(work, rank, memory);
    call();
    calls = 1;
  };
  begin();
  check(work, rank, memory);

  std::vector<double> seconds;
  for (int batch = 0; batch < work.warmup + work.batches; ++batch) {
    if (calls + work.batch > calls_before_infinity(work, rank)) begin();
    const auto started = std::chrono::steady_clock::now();
    for (int i = 0; i < work.batch; ++i) call();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
    calls += work.batch;
    if (batch >= work.warmup) seconds.push_back(took.count() / work.batch);
  }
  return seconds;
}

void print_figure(const Case& work, std::vector<double> seconds) {
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  std::printf("figure %s %s %zu %.5f\n", work.operation.c_str(), work.memory.c_str(), work.bytes,
              *middle * 1e6);
  std::fflush(stdout);
}

}  // namespace bench
