// SPDX-License-Identifier: Apache-2.0
#include "bench/scale/cores.h"

#include <fcntl.h>
#include <lockstep/base/spin_pause.h>
#include <lockstep/launch/binding.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;
using lockstep::Core;

constexpr int round_trips = 2000;
constexpr int rounds = 200;
constexpr std::size_t in_a_row = 64 / sizeof(std::uint64_t);
constexpr std::size_t many_flags = 256;
constexpr std::size_t lines_in_a_row = 8192;  // As many as an all_reduce of 1 MB gets from a peer.

Reach reach_of(const Core& a, const Core& b) {
  if (a.package != b.package) return Reach::other_package;
  return a.l3 == b.l3 ? Reach::same_l3 : Reach::other_l3;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void bind(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(cpu), &one);
  if (::sched_setaffinity(0, sizeof one, &one) != 0)
    throw std::system_error(errno, std::generic_category(), "sched_setaffinity");
}

struct alignas(64) Turn {
  std::atomic<std::uint32_t> value{0};

  void await(std::uint32_t target) const {
    while (value.load(std::memory_order_acquire) != target) lockstep::spin_pause();
  }
};

template <class Act>
double nanoseconds(Act act) {
  const auto begin = Clock::now();
  act();
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

// Concurrently, each bound to its core.
void on_both(Pair cpus, const std::function<void()>& first, const std::function<void()>& second) {
  std::thread other([&] {
    bind(cpus.second_cpu);
    second();
  });
  std::thread one([&] {
    bind(cpus.first_cpu);
    first();
  });
  one.join();
  other.join();
}

double time_flag(Pair cpus) {
  Turn ping, pong;
  std::vector<double> times;
  const auto ask = [&] {
    std::uint32_t turn = 0;
    for (int round = 0; round < rounds; ++round)
      times.push_back(nanoseconds([&] {
                        for (int i = 0; i < round_trips; ++i) {
                          ping.value.store(++turn, std::memory_order_release);
                          pong.await(turn);
                        }
                      }) /
                      (2 * round_trips));
  };
  const auto answer = [&] {
    for (std::uint32_t turn = 1; turn <= std::uint32_t{rounds} * round_trips; ++turn) {
      ping.await(turn);
      pong.value.store(turn, std::memory_order_release);
    }
  };
  on_both(cpus, ask, answer);
  return median(std::move(times));
}

// One core writes `lines` lines, `stride` words apart; then the other one reads them.
double time_reading(Pair cpus, std::size_t lines, std::size_t stride) {
  std::vector<std::uint64_t> memory(lines * stride + in_a_row);
  volatile std::uint64_t* const words = memory.data();
  Turn written, read;
  std::vector<double> times;
  const auto write = [&] {
    for (std::uint32_t round = 1; round <= rounds; ++round) {
      for (std::size_t i = 0; i < lines; ++i) words[i * stride] = round;
      written.value.store(round, std::memory_order_release);
      read.await(round);
    }
  };
  const auto take = [&] {
    std::uint64_t sum = 0;
    for (std::uint32_t round = 1; round <= rounds; ++round) {
      written.await(round);
      times.push_back(nanoseconds([&] {
                        for (std::size_t i = 0; i < lines; ++i) sum += words[i * stride];
                      }) /
                      static_cast<double>(lines));
      read.value.store(round, std::memory_order_release);
    }
  };
  on_both(cpus, write, take);
  return median(std::move(times));
}

}  // namespace

std::string name_of(Reach reach) {
  constexpr std::array names{"same_l3", "other_l3", "other_package"};
  return names[static_cast<std::size_t>(reach)];
}

std::vector<ReachPair> pairs_of_host() {
  const auto cores = lockstep::read_topology(lockstep::affinity_mask()).cores;
  std::map<Reach, Pair> found;
  for (std::size_t i = 1; i < cores.size(); ++i)
    found.try_emplace(reach_of(cores.front(), cores[i]),
                      Pair{cores.front().cpus.front(), cores[i].cpus.front()});
  std::vector<ReachPair> pairs;
  for (const auto& [reach, cpus] : found) pairs.push_back({reach, cpus});
  return pairs;
}

std::vector<double> shares_of_pairs(int ranks) {
  const auto plan = lockstep::plan_binding(ranks, lockstep::Binding::core).ranks;
  const auto cores = lockstep::read_topology(lockstep::affinity_mask()).cores;
  std::map<int, const Core*> core_of;
  for (const Core& core : cores)
    for (const int cpu : core.cpus) core_of[cpu] = &core;
  std::vector<double> shares(3);
  for (const auto& a : plan)
    for (const auto& b : plan)
      if (&a != &b)
        shares[static_cast<std::size_t>(
            reach_of(*core_of.at(a.cpus.front()), *core_of.at(b.cpus.front())))] += 1;
  for (double& share : shares) share /= ranks * (ranks - 1.0);
  return shares;
}

LineTimes time_lines(Pair cpus, std::size_t lane) {
  return {.line = time_flag(cpus),
          .flags = time_reading(cpus, many_flags, lane / sizeof(std::uint64_t)),
          .stream = time_reading(cpus, lines_in_a_row, in_a_row)};
}

double time_page() {
  constexpr std::size_t pages = 4096;
  std::vector<double> times;
  for (int round = 0; round < 5; ++round) {
    const int fd = ::memfd_create("bench_scale", MFD_CLOEXEC);
    if (fd < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
    int failed = 0;
    times.push_back(nanoseconds([&] { failed = ::fallocate(fd, 0, 0, pages * 4096); }) / pages);
    const int why = errno;
    ::close(fd);
    if (failed != 0) throw std::system_error(why, std::generic_category(), "fallocate");
  }
  return median(std::move(times));
}

}  // namespace bench
