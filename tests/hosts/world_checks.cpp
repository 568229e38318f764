// SPDX-License-Identifier: Apache-2.0
#include "tests/hosts/world_checks.h"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::test {
namespace {

using Values = std::vector<float>;

// Small whole numbers: their sums are exact in any order.
float value(int rank, std::size_t index) {
  return static_cast<float>((static_cast<std::size_t>(rank) * 31 + index * 7) % 97);
}

Values values_of(int rank, std::size_t count) {
  Values values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value(rank, i);
  return values;
}

Values sum_over(const std::vector<int>& ranks, std::size_t count) {
  Values sum(count);
  for (const int rank : ranks)
    for (std::size_t i = 0; i < count; ++i) sum[i] += value(rank, i);
  return sum;
}

std::vector<int> all_ranks(const ProcessGroup& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::size_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

void append(Values& values, const Values& more) {
  values.insert(values.end(), more.begin(), more.end());
}

void expect_equal(const Values& got, const Values& wanted, const std::string& call) {
  if (got.size() != wanted.size()) throw std::logic_error(call + ": a wrong number of elements");
  for (std::size_t i = 0; i < got.size(); ++i)
    if (got[i] != wanted[i])
      throw std::logic_error(call + ": element " + std::to_string(i) + " is " +
                             std::to_string(got[i]) + ", not " + std::to_string(wanted[i]));
}

void check_all_reduce(const ProcessGroup& world) {
  for (const std::size_t count : {1, 7, 1000, 300'001}) {
    Values data = values_of(world.rank(), count);
    world.all_reduce(buffer_of(data));
    expect_equal(data, sum_over(all_ranks(world), count), "all_reduce of " + std::to_string(count));
  }
}

void check_from_and_to_one(const ProcessGroup& world) {
  constexpr std::size_t count = 501;
  const auto size = static_cast<std::size_t>(world.size());
  for (const int root : all_ranks(world)) {
    Values data = values_of(world.rank(), count);
    world.broadcast(buffer_of(data), root);
    expect_equal(data, values_of(root, count), "broadcast");

    data = values_of(world.rank(), count);
    world.reduce(buffer_of(data), root);
    if (world.rank() == root) expect_equal(data, sum_over(all_ranks(world), count), "reduce");

    const Values mine = values_of(world.rank(), count);
    Values gathered(world.rank() == root ? size * count : 0);
    Values wanted;
    for (const int rank : all_ranks(world)) append(wanted, values_of(rank, count));
    world.gather(buffer_of(mine), buffer_of(gathered), root);
    if (world.rank() == root) expect_equal(gathered, wanted, "gather");

    Values part(count);
    if (world.rank() != root) wanted.clear();
    world.scatter(buffer_of(wanted), buffer_of(part), root);
    expect_equal(part, mine, "scatter");
  }
}

// Ranks have different amounts, and rank 0 has no data.
void check_uneven_parts(const ProcessGroup& world) {
  Counts counts;
  Values everything;
  for (const int rank : all_ranks(world)) {
    counts.push_back(static_cast<std::size_t>(rank) * 333);
    append(everything, values_of(rank, counts.back()));
  }
  const std::size_t own = counts[static_cast<std::size_t>(world.rank())];
  const Values mine = values_of(world.rank(), own);
  Values gathered(total(counts));
  world.all_gather(buffer_of(mine), buffer_of(gathered), counts);
  expect_equal(gathered, everything, "all_gather");

  const Values input = values_of(world.rank(), total(counts));
  Values part(own);
  world.reduce_scatter(buffer_of(input), buffer_of(part), ReduceOp::sum, counts);
  const Values sum = sum_over(all_ranks(world), total(counts));
  const auto begin =
      sum.begin() + std::accumulate(counts.begin(), counts.begin() + world.rank(), 0);
  expect_equal(part, Values(begin, begin + static_cast<std::ptrdiff_t>(own)), "reduce_scatter");
}

void check_all_to_all(const ProcessGroup& world) {
  const auto count = [](int from, int to) { return static_cast<std::size_t>((from + 2 * to) % 5); };
  Counts sent;
  Counts received;
  Values input;
  Values wanted;
  for (const int peer : all_ranks(world)) {
    sent.push_back(count(world.rank(), peer));
    received.push_back(count(peer, world.rank()));
    append(input, values_of(world.rank() + 10 * peer, sent.back()));
    append(wanted, values_of(peer + 10 * world.rank(), received.back()));
  }
  Values output(wanted.size());
  world.all_to_all(buffer_of(input), buffer_of(output), sent, received);
  expect_equal(output, wanted, "all_to_all");
}

void check_messages(const ProcessGroup& world) {
  for (const std::size_t count : {1, 100'000}) {
    const Values mine = values_of(world.rank(), count);
    std::vector<Work> sending;
    for (const int peer : all_ranks(world))
      if (peer != world.rank()) sending.push_back(world.send_async(buffer_of(mine), peer, 5));
    for (const int peer : all_ranks(world)) {
      if (peer == world.rank()) continue;
      Values got(count);
      const Source source = world.recv(buffer_of(got), peer);
      expect_equal(got, values_of(peer, count), "recv");
      if (source.rank != peer || source.tag != 5) throw std::logic_error("recv: a wrong source");
    }
    for (const Work& work : sending) work.wait();
  }
}

// Groups of the even ranks and of the odd ones: on hosts of two ranks each, both span hosts.
void check_half(const ProcessGroup& world) {
  constexpr std::size_t count = 1001;
  std::vector<int> ranks;
  for (const int rank : all_ranks(world))
    if (rank % 2 == world.rank() % 2) ranks.push_back(rank);
  ProcessGroup half = world.split(world.rank() % 2);
  Values data = values_of(world.rank(), count);
  half.all_reduce(buffer_of(data));
  expect_equal(data, sum_over(ranks, count), "all_reduce of half of the ranks");
  destroy_process_group(half);
}

void check_registered_memory(const ProcessGroup& world) {
  constexpr std::size_t count = 50'000;
  const RegisteredMemory memory = world.allocate(count * sizeof(float));
  auto* data = static_cast<float*>(memory.data());
  for (std::size_t i = 0; i < count; ++i) data[i] = value(world.rank(), i);
  world.all_reduce({.data = data, .count = count});
  expect_equal(Values(data, data + count), sum_over(all_ranks(world), count),
               "all_reduce of registered memory");
}

}  // namespace

void check_world(const ProcessGroup& world) {
  check_all_reduce(world);
  check_from_and_to_one(world);
  check_uneven_parts(world);
  check_all_to_all(world);
  check_messages(world);
  check_half(world);
  check_registered_memory(world);
  world.barrier();
}

}  // namespace lockstep::test
