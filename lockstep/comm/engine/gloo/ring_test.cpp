// Members are threads. plugin_test.cpp tests the combinations.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/gloo/ring.h"

#include <gloo/common/error.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "lockstep/base/signals.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/engine/gloo/combine.h"
#include "lockstep/comm/engine/gloo/mesh.h"
#include "lockstep/job/store/store.h"

namespace lockstep::comm::engines::ring_test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t block_bytes = std::size_t{128} << 10;

// --- Members -------------------------------------------------------------------------------------

int set(void* self, const char* key, const void* value, std::size_t bytes, lockstep_engine_error*) {
  static_cast<Store*>(self)->set(key, {static_cast<const char*>(value), bytes});
  return 0;
}

int wait(void* self, const char* key, void* value, std::size_t capacity, std::size_t* bytes,
         lockstep_engine_error*) {
  const std::string found = static_cast<Store*>(self)->wait(key, no_deadline);
  *bytes = found.size();
  found.copy(static_cast<char*>(value), capacity);
  return 0;
}

using Meshes = std::vector<std::shared_ptr<Mesh>>;

Meshes make_meshes(int size, std::chrono::milliseconds call_timeout) {
  InProcessStore store;
  Meshes meshes(static_cast<std::size_t>(size));
  std::vector<std::jthread> members;
  for (int rank = 0; rank < size; ++rank)
    members.emplace_back([&, rank] {
      lockstep_engine_config config = {};
      config.rank = rank;
      config.size = size;
      config.address = "127.0.0.1";
      config.timeout_ms = 30'000;
      config.call_timeout_ms = call_timeout.count();
      config.store = {&store, set, wait};
      const IgnoreSignals ignore{SIGPIPE};  // Gloo's thread inherits that.
      meshes[static_cast<std::size_t>(rank)] = std::make_shared<Mesh>(config);
    });
  members.clear();
  return meshes;
}

void on_each(const Meshes& meshes, const std::function<void(Mesh&)>& act) {
  std::vector<std::jthread> members;
  for (const auto& mesh : meshes)
    members.emplace_back([&] {
      const IgnoreSignals ignore{SIGPIPE};
      act(*mesh);
    });
}

// --- Results -------------------------------------------------------------------------------------

// The order of additions changes the last bits of a sum. 0 and -0 are equal.
template <class T>
T element(int rank, std::size_t i) {
  std::uint64_t bits = (static_cast<std::uint64_t>(rank) << 40 | i) * 0x9e3779b97f4a7c15;
  bits = (bits ^ bits >> 29) * 0xbf58476d1ce4e5b9;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits >> 20);
  } else {
    if (i % 7 == 0) return bits >> 63 != 0 ? -T{0} : T{0};
    return static_cast<T>(static_cast<std::int64_t>(bits)) * static_cast<T>(0x1p-62);
  }
}

// In the order of all_reduce_in_ring().
template <class T>
std::vector<T> serially(Combine combine, std::size_t count, int size) {
  std::vector<T> result(count);
  const auto members = static_cast<std::size_t>(size);
  for (int chunk = 0; chunk < size; ++chunk) {
    const auto number = static_cast<std::size_t>(chunk);
    for (std::size_t i = count * number / members; i < count * (number + 1) / members; ++i) {
      result[i] = element<T>(chunk, i);
      for (int hop = 1; hop < size; ++hop) {
        const T own = element<T>((chunk + hop) % size, i);
        combine(&result[i], &own, &result[i], 1);
      }
    }
  }
  return result;
}

template <class T>
lockstep_buffer buffer_at(T* data, std::size_t count) {
  lockstep_buffer buffer = {};
  buffer.data = data;
  buffer.count = count;
  buffer.dtype = static_cast<std::uint8_t>(dtype_of<T>);
  return buffer;
}

// The data begins at an odd element, between two other elements.
template <class T>
void check(Mesh& mesh, ReduceOp op, std::size_t count) {
  const Combine combine =
      combine_for(static_cast<std::uint8_t>(dtype_of<T>), static_cast<std::uint8_t>(op));
  if (combine == nullptr) {
    ADD_FAILURE() << "no " << name(op) << " of " << name(dtype_of<T>);
    return;
  }
  constexpr auto around = static_cast<T>(77);
  std::vector<T> data(count + 2, around);
  for (std::size_t i = 0; i < count; ++i) data[i + 1] = element<T>(mesh.rank, i);
  std::vector<T> expected = serially<T>(combine, count, mesh.size);
  expected.insert(expected.begin(), around);
  expected.push_back(around);

  all_reduce_in_ring(mesh, buffer_at(data.data() + 1, count), combine);

  if (std::memcmp(data.data(), expected.data(), data.size() * sizeof(T)) == 0) return;
  const auto differ = std::ranges::mismatch(data, expected, [](const T& one, const T& other) {
    return std::memcmp(&one, &other, sizeof(T)) == 0;
  });
  ADD_FAILURE() << name(op) << " of " << count << " " << name(dtype_of<T>) << " on member "
                << mesh.rank << " of " << mesh.size << ", first at "
                << differ.in1 - data.begin() - 1 << ": " << +*differ.in1 << " is not "
                << +*differ.in2;
}

// The operations that the plugin combines. The core makes an average of a sum.
template <class T>
std::vector<ReduceOp> reductions() {
  std::vector<ReduceOp> all{ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max};
  if (std::is_integral_v<T>) all.insert(all.end(), {ReduceOp::band, ReduceOp::bor, ReduceOp::bxor});
  return all;
}

template <class T>
void check_every_reduction(Mesh& mesh) {
  for (const ReduceOp op : reductions<T>())
    for (const std::size_t count : {0, 1, 2, 3, 4, 5, 7, 8, 9, 10'007}) check<T>(mesh, op, count);
}

// Counts around the limits of the scratch memory, of the number of segments, and of the rounds for
// which a member is ready.
template <class T>
void check_every_size(Mesh& mesh) {
  const std::size_t block = block_bytes / sizeof(T);
  const auto members = static_cast<std::size_t>(mesh.size);
  for (const std::size_t middle : {block, block * members, 2 * block * members, 3 * block * members,
                                   4 * block * members, 9 * block * members})
    for (const std::size_t count : {middle - 1, middle, middle + 1})
      check<T>(mesh, ReduceOp::sum, count);
}

class RingOf : public testing::TestWithParam<int> {};

TEST_P(RingOf, ThreadsEqualASerialLoopBitForBit) {
  on_each(make_meshes(GetParam(), 1min), [](Mesh& mesh) {
    check_every_reduction<float>(mesh);
    check_every_reduction<double>(mesh);
    check_every_reduction<std::int8_t>(mesh);
    check_every_reduction<std::int16_t>(mesh);
    check_every_reduction<std::int32_t>(mesh);
    check_every_reduction<std::int64_t>(mesh);
    check_every_reduction<std::uint8_t>(mesh);
    check_every_reduction<std::uint16_t>(mesh);
    check_every_reduction<std::uint32_t>(mesh);
    check_every_reduction<std::uint64_t>(mesh);
  });
}

TEST_P(RingOf, ThreadsEqualASerialLoopInAnyNumberOfBlocks) {
  on_each(make_meshes(GetParam(), 1min), [](Mesh& mesh) {
    check_every_size<std::uint8_t>(mesh);
    check_every_size<std::int16_t>(mesh);
    check_every_size<float>(mesh);
    check_every_size<double>(mesh);
  });
}

INSTANTIATE_TEST_SUITE_P(Gloo, RingOf, testing::Values(1, 2, 3, 4),
                         [](const auto& size) { return std::to_string(size.param); });

// --- A member that stops -------------------------------------------------------------------------

// Set on one thread: called before each combination.
thread_local std::function<void()> before_combination;

void sum_of_floats(void* out, const void* left, const void* right, std::size_t count) {
  if (before_combination) before_combination();
  combine<float, Sum>(out, left, right, count);
}

// Member 0 stops before it has added its third segment, and continues when the calls of all others
// have ended. Calls `when_stopped` meanwhile. All calls must fail.
void stop_within_a_call(std::chrono::milliseconds call_timeout,
                        const std::function<void(const Meshes&)>& when_stopped) {
  const Meshes meshes = make_meshes(3, call_timeout);
  std::latch others(2);
  on_each(meshes, [&](Mesh& mesh) {
    int blocks = 0;
    if (mesh.rank == 0)
      before_combination = [&] {
        if (++blocks != 3) return;
        when_stopped(meshes);
        others.wait();
      };
    std::vector<float> data(30 * block_bytes / sizeof(float), 1);
    EXPECT_THROW(all_reduce_in_ring(mesh, buffer_at(data.data(), data.size()), sum_of_floats),
                 gloo::IoException);
    mesh.abort("its call failed");
    if (mesh.rank != 0) others.count_down();
    EXPECT_TRUE(mesh.rank != 0 || blocks >= 3);
  });
}

TEST(Ring, EndsByItsTimeoutIfAMemberStopsWithinACall) {
  stop_within_a_call(5s, [](const Meshes&) {});
}

TEST(Ring, EndsWhenItIsAbortedWithinACall) {
  stop_within_a_call(1min, [](const Meshes& meshes) {
    for (const auto& mesh : meshes) mesh->abort("one has stopped");
  });
}

}  // namespace
}  // namespace lockstep::comm::engines::ring_test
