// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/plugin.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <thread>

#include "tests/ranks.h"
#include "tests/rigs/plugin_rig.h"

namespace lockstep::test::plugin_test {
namespace {

using Counts = std::vector<std::size_t>;

bool supports(const Member& member, Operation operation, DType dtype, ReduceOp op = ReduceOp::sum) {
  return member.engine().supports(static_cast<std::uint8_t>(operation),
                                  static_cast<std::uint8_t>(dtype),
                                  static_cast<std::uint8_t>(op)) != 0;
}

// --- Reductions ----------------------------------------------------------------------------------

// Small enough that products of three are exact, large enough that short integers wrap.
template <class T>
T element(int rank, std::size_t i) {
  const auto small = static_cast<int>((static_cast<std::size_t>(rank) * 37 + i * 11) % 101);
  return static_cast<T>(std::is_signed_v<T> ? small - 50 : small);
}

template <class T>
T combined(ReduceOp op, T a, T b) {
  const auto wide = [](T value) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<std::uint64_t>(value);
    } else {
      return value;
    }
  };
  switch (op) {
    case ReduceOp::sum:
      return static_cast<T>(wide(a) + wide(b));
    case ReduceOp::product:
      return static_cast<T>(wide(a) * wide(b));
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (op == ReduceOp::band) return static_cast<T>(a & b);
    if (op == ReduceOp::bor) return static_cast<T>(a | b);
    if (op == ReduceOp::bxor) return static_cast<T>(a ^ b);
  }
  ADD_FAILURE() << "the plugin supports an operation without a meaning";
  return a;
}

template <class T>
std::vector<T> elements_of(int rank, std::size_t count) {
  std::vector<T> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = element<T>(rank, i);
  return made;
}

template <class T>
std::vector<T> serially(ReduceOp op, int size, std::size_t count) {
  std::vector<T> result = elements_of<T>(0, count);
  for (int rank = 1; rank < size; ++rank) {
    for (std::size_t i = 0; i < count; ++i) {
      result[i] = combined<T>(op, result[i], element<T>(rank, i));
    }
  }
  return result;
}

template <class Check>
void with_each_number(Check check) {
  check(std::vector<float>(), std::vector<double>(), std::vector<std::int8_t>(),
        std::vector<std::int16_t>(), std::vector<std::int32_t>(), std::vector<std::int64_t>(),
        std::vector<std::uint8_t>(), std::vector<std::uint16_t>(), std::vector<std::uint32_t>(),
        std::vector<std::uint64_t>());
}

template <class T>
void check_all_reduce(Member& member, ReduceOp op, std::size_t count) {
  if (!supports(member, Operation::all_reduce, dtype_of<T>, op)) return;
  auto data = elements_of<T>(member.rank(), count);
  member.all_reduce(buffer_of(data), static_cast<std::uint8_t>(op));
  EXPECT_EQ(data, serially<T>(op, member.size(), count)) << name(dtype_of<T>) << ", " << name(op);
}

template <class T>
void check_reduce(Member& member, ReduceOp op, std::size_t count) {
  if (!supports(member, Operation::reduce, dtype_of<T>, op)) return;
  for (int root = 0; root < member.size(); ++root) {
    const auto own = elements_of<T>(member.rank(), count);
    auto data = own;
    member.run(
        Operation::reduce,
        {.output = buffer_of(data), .reduce_op = static_cast<std::uint8_t>(op), .root = root});
    EXPECT_EQ(data, root == member.rank() ? serially<T>(op, member.size(), count) : own)
        << name(dtype_of<T>) << ", " << name(op) << ", to " << root;
  }
}

template <class T>
void check_reduce_scatter(Member& member, ReduceOp op, std::size_t count) {
  if (!supports(member, Operation::reduce_scatter, dtype_of<T>, op)) return;
  Counts counts(static_cast<std::size_t>(member.size()), 0);
  counts.front() = count / 3;
  counts.back() += count - count / 3;
  const auto own = counts.begin() + member.rank();
  const auto begin = std::accumulate(counts.begin(), own, std::size_t{0});
  auto input = elements_of<T>(member.rank(), count);
  std::vector<T> output(*own);
  member.run(Operation::reduce_scatter, {.input = buffer_of(input),
                                         .output = buffer_of(output),
                                         .reduce_op = static_cast<std::uint8_t>(op),
                                         .send_counts = counts.data()});
  const auto whole = serially<T>(op, member.size(), count);
  EXPECT_TRUE(
      std::equal(output.begin(), output.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin)))
      << name(dtype_of<T>) << ", " << name(op);
}

template <class T>
void check_reductions(Member& member, ReduceOp op, std::size_t count) {
  check_all_reduce<T>(member, op, count);
  check_reduce<T>(member, op, count);
  check_reduce_scatter<T>(member, op, count);
}

const Ranks reduce_everything("plugins reduce", [](const Rank& rank) {
  Member member(engine_under_test(), member_of(rank));
  EXPECT_TRUE(supports(member, Operation::all_reduce, DType::float32));
  for (std::size_t count : {0, 1, 2, 3, 5, 1000}) {
    for (int op = 0; op < reduce_op_count; ++op) {
      if (static_cast<ReduceOp>(op) == ReduceOp::average) continue;
      with_each_number([&]<class... T>(std::vector<T>...) {
        (check_reductions<T>(member, static_cast<ReduceOp>(op), count), ...);
      });
    }
  }
  // Several segments of a ring.
  check_reductions<double>(member, ReduceOp::sum, 700'001);
});

const Ranks spread_nan("plugins spread NaN", [](const Rank& rank) {
  Member member(engine_under_test(), member_of(rank));
  for (ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    if (!supports(member, Operation::all_reduce, DType::float32, op)) continue;
    for (int from = 0; from < rank.world_size; ++from) {
      std::vector<float> data(17, static_cast<float>(rank.rank));
      if (rank.rank == from) data[5] = std::numeric_limits<float>::quiet_NaN();
      member.all_reduce(buffer_of(data), static_cast<std::uint8_t>(op));
      EXPECT_TRUE(std::isnan(data[5])) << name(op) << " with a NaN on rank " << from;
      EXPECT_FALSE(std::isnan(data[4]));
    }
  }
});

// --- Bytes from rank to rank --------------------------------------------------------------------

std::vector<std::byte> message(int from, int to, std::size_t bytes) {
  std::vector<std::byte> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    made[i] = static_cast<std::byte>(i * 7 + i / 256 + static_cast<std::size_t>(from) * 101 +
                                     static_cast<std::size_t>(to) * 13);
  }
  return made;
}

void append(std::vector<std::byte>& to, const std::vector<std::byte>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

constexpr int to_all = 99;

void check_broadcast(Member& member, DType dtype, std::size_t count) {
  const std::size_t bytes = count * size_of(dtype);
  for (int root = 0; root < member.size(); ++root) {
    auto data = message(member.rank(), to_all, bytes);
    member.broadcast(buffer_of(data.data(), count, dtype), root);
    EXPECT_EQ(data, message(root, to_all, bytes)) << "broadcast from " << root;
  }
}

void check_all_gather(Member& member, DType dtype, const Counts& counts) {
  std::vector<std::byte> expected;
  std::size_t own_offset = 0;
  for (int from = 0; from < member.size(); ++from) {
    if (from == member.rank()) own_offset = expected.size();
    append(expected, message(from, to_all, counts[from] * size_of(dtype)));
  }
  const std::size_t total = expected.size() / size_of(dtype);
  auto input = message(member.rank(), to_all, counts[member.rank()] * size_of(dtype));
  std::vector<std::byte> output(expected.size());
  member.all_gather(buffer_of(input.data(), counts[member.rank()], dtype),
                    buffer_of(output.data(), total, dtype), counts);
  EXPECT_EQ(output, expected) << "all_gather, " << name(dtype);

  std::fill(output.begin(), output.end(), std::byte{0});
  std::copy(input.begin(), input.end(), output.begin() + static_cast<std::ptrdiff_t>(own_offset));
  // An empty input may be anywhere.
  if (counts[member.rank()] == 0) own_offset = 0;
  member.all_gather(buffer_of(output.data() + own_offset, counts[member.rank()], dtype),
                    buffer_of(output.data(), total, dtype), counts);
  EXPECT_EQ(output, expected) << "all_gather in place, " << name(dtype);
}

void check_all_to_all(Member& member, DType dtype,
                      const std::function<std::size_t(int, int)>& count_between) {
  std::vector<std::byte> input, expected;
  Counts send_counts, receive_counts;
  for (int peer = 0; peer < member.size(); ++peer) {
    send_counts.push_back(count_between(member.rank(), peer));
    receive_counts.push_back(count_between(peer, member.rank()));
    append(input, message(member.rank(), peer, send_counts.back() * size_of(dtype)));
    append(expected, message(peer, member.rank(), receive_counts.back() * size_of(dtype)));
  }
  std::vector<std::byte> output(expected.size());
  member.run(Operation::all_to_all,
             {.input = buffer_of(input.data(), input.size() / size_of(dtype), dtype),
              .output = buffer_of(output.data(), output.size() / size_of(dtype), dtype),
              .send_counts = send_counts.data(),
              .receive_counts = receive_counts.data()});
  EXPECT_EQ(output, expected) << "all_to_all, " << name(dtype);
}

const Ranks move_everything("plugins move", [](const Rank& rank) {
  Member member(engine_under_test(), member_of(rank));
  const auto size = static_cast<std::size_t>(rank.world_size);
  Counts uneven(size), only_last(size, 0);
  for (std::size_t i = 0; i < size; ++i) uneven[i] = 1 + i * 40'001;
  only_last.back() = 5;
  for (int i = 0; i < dtype_count; ++i) {
    const auto dtype = static_cast<DType>(i);
    ASSERT_TRUE(supports(member, Operation::all_gather, dtype));
    ASSERT_TRUE(supports(member, Operation::all_to_all, dtype));
    for (const Counts& counts : {Counts(size, 3), uneven, only_last, Counts(size, 0)}) {
      check_all_gather(member, dtype, counts);
    }
    check_all_to_all(member, dtype, [](int, int) { return 3; });
    check_all_to_all(member, dtype, [](int, int) { return 0; });
    check_all_to_all(member, dtype, [](int from, int to) { return (from * 2 + to) % 3 * 20'001; });
    if (!supports(member, Operation::broadcast, dtype)) continue;
    for (std::size_t count : {0, 1, 3, 300'001}) check_broadcast(member, dtype, count);
  }
});

// --- Two communicators ---------------------------------------------------------------------------

const Ranks two_threads("plugins in two threads", [](const Rank& rank) {
  MemberOptions options = member_of(rank);
  options.name = "first";
  Member first(engine_under_test(), options);
  options.name = "second";
  Member second(engine_under_test(), options);
  const auto work = [&](Member& member, std::size_t count) {
    for (int round = 0; round < 20; ++round) {
      check_all_reduce<float>(member, ReduceOp::sum, count);
      check_all_gather(member, DType::int64, Counts(rank.world_size, count));
    }
  };
  std::thread other([&] { work(second, 70'001); });
  work(first, 11);
  other.join();
});

TEST_P(Plugins, ReportsItsNameAndVersion) {
  const lockstep_engine& engine = engine_under_test();
  EXPECT_EQ(engine.abi, LOCKSTEP_ENGINE_ABI);
  EXPECT_EQ(engine.struct_bytes, sizeof engine);
  EXPECT_STREQ(engine.name, GetParam());
  char version[64] = "";
  lockstep_engine_error error = {};
  ASSERT_EQ(engine.probe(version, sizeof version, &error), 0) << error.text;
  EXPECT_STRNE(version, "");
}

TEST_P(Plugins, ReducesAsASerialLoop) {
  for (int size : {2, 3}) EXPECT_TRUE(all_succeeded(reduce_everything.run(size)));
}

TEST_P(Plugins, SpreadsNaN) { EXPECT_TRUE(all_succeeded(spread_nan.run(3))); }

TEST_P(Plugins, MovesEveryDTypeAndCount) {
  for (int size : {2, 3}) EXPECT_TRUE(all_succeeded(move_everything.run(size)));
}

TEST_P(Plugins, ServesTwoCommunicatorsInTwoThreads) {
  for (int size : {2, 3}) EXPECT_TRUE(all_succeeded(two_threads.run(size)));
}

INSTANTIATE_TEST_SUITE_P(Engines, Plugins, testing::ValuesIn(engines_under_test),
                         [](const auto& engine) { return std::string(engine.param); });

}  // namespace
}  // namespace lockstep::test::plugin_test
