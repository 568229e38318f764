// SPDX-License-Identifier: Apache-2.0
#include "tests/rigs/conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

#include "lockstep/comm/reduce/reduce.h"

namespace lockstep::test {
namespace {

using Elements = std::vector<std::byte>;

// Sizes at which behaviour changes: 0, 1, around the ranks, a cache line, small data, a chunk,
// several chunks.
#if defined(__SANITIZE_THREAD__)  // A hundred times slower, and every size is not needed.
constexpr std::size_t sizes[] = {0, 1, 1025, 40003};
#else
constexpr std::size_t sizes[] = {0, 1, 2, 3, 5, 16, 17, 1000, 1025, 32768, 32769, 100003};
#endif

std::vector<DType> all_dtypes() {
  std::vector<DType> all;
  for (int i = 0; i < dtype_count; ++i) all.push_back(static_cast<DType>(i));
  return all;
}

// --- Values in the range of every type -----------------------------------------------------------

template <class T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// Returns a whole number in 0..15 as a float16.
std::uint16_t half_of(int value) {
  if (value == 0) return 0;
  int exponent = 0;
  while ((value >> (exponent + 1)) != 0) ++exponent;
  const int mantissa = (value << 10 >> exponent) & 0x3ff;
  return static_cast<std::uint16_t>((exponent + 15) << 10 | mantissa);
}

std::uint16_t brain_of(int value) {
  const auto number = static_cast<float>(value);
  std::uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

void store(DType dtype, std::byte* to, int value) {
  switch (dtype) {
    case DType::float32:
      return store(to, static_cast<float>(value));
    case DType::float64:
      return store(to, static_cast<double>(value));
    case DType::float16:
      return store(to, half_of(value));
    case DType::bfloat16:
      return store(to, brain_of(value));
    case DType::boolean:
      return store(to, static_cast<std::uint8_t>(value % 2));
    case DType::int8:
    case DType::uint8:
      return store(to, static_cast<std::uint8_t>(value));
    case DType::int16:
    case DType::uint16:
      return store(to, static_cast<std::uint16_t>(value));
    case DType::int32:
    case DType::uint32:
      return store(to, static_cast<std::uint32_t>(value));
    case DType::int64:
    case DType::uint64:
      return store(to, static_cast<std::uint64_t>(value));
  }
}

// Input of rank `rank`. Neighbouring elements and ranks have different values.
Elements elements_of(DType dtype, std::size_t count, int rank) {
  Elements all(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i)
    store(dtype, all.data() + i * size_of(dtype),
          static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 5 + i / 16) % 16));
  return all;
}

std::vector<Elements> elements_of_all(DType dtype, std::size_t count, int ranks) {
  std::vector<Elements> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(elements_of(dtype, count, rank));
  return all;
}

Elements reduced(const std::vector<Elements>& all, DType dtype, ReduceOp op) {
  Elements result(all.front().size());
  std::vector<const std::byte*> sources;
  for (const Elements& one : all) sources.push_back(one.data());
  std::byte* target = result.data();
  comm::reduce_function(dtype, op)(sources.data(), static_cast<int>(sources.size()), &target, 1,
                                   result.size() / size_of(dtype));
  return result;
}

Elements slice(const Elements& all, std::size_t begin, std::size_t count, DType dtype) {
  const auto from = all.begin() + static_cast<std::ptrdiff_t>(begin * size_of(dtype));
  return {from, from + static_cast<std::ptrdiff_t>(count * size_of(dtype))};
}

void append(Elements& all, const Elements& more) {
  all.insert(all.end(), more.begin(), more.end());
}

// --- Memory of every kind ------------------------------------------------------------------------

enum class Kind { plain, registered, mixed, inputs_only, outputs_only };
constexpr Kind kinds[] = {Kind::plain, Kind::registered, Kind::mixed, Kind::inputs_only,
                          Kind::outputs_only};

// Allocates buffers, in registered memory or not; all ranks allocate the same ones in the same
// order.
class Arena {
 public:
  Arena(const ProcessGroup& group, Kind kind) : group_(group), kind_(kind) {
    if (kind != Kind::plain) memory_ = group.allocate(std::size_t{8} << 20);
  }

  Buffer input(const Elements& values, DType dtype) {
    const bool registered = kind_ == Kind::registered || kind_ == Kind::inputs_only ||
                            (kind_ == Kind::mixed && group_.rank() % 2 == 1);
    const Buffer buffer = make(values.size() / size_of(dtype), dtype, registered);
    if (!values.empty()) std::memcpy(buffer.data, values.data(), values.size());
    return buffer;
  }

  Buffer output(std::size_t count, DType dtype) {
    return make(count, dtype, kind_ == Kind::registered || kind_ == Kind::outputs_only);
  }

 private:
  Buffer make(std::size_t count, DType dtype, bool registered) {
    const std::size_t bytes = count * size_of(dtype);
    if (!registered || used_ + bytes > memory_.bytes()) {
      kept_.emplace_back(bytes + 1);
      return {.data = kept_.back().data(), .count = count, .dtype = dtype};
    }
    auto* const data = static_cast<std::byte*>(memory_.data()) + used_;
    used_ += (bytes + 23) / 8 * 8;  // Tests unaligned addresses, too.
    return {.data = data, .count = count, .dtype = dtype};
  }

  const ProcessGroup& group_;
  const Kind kind_;
  RegisteredMemory memory_;
  std::size_t used_ = 0;
  std::vector<Elements> kept_;
};

Elements contents(const Buffer& buffer) {
  const auto* data = static_cast<const std::byte*>(buffer.data);
  return {data, data + buffer.bytes()};
}

void expect_equal(const Buffer& buffer, const Elements& expected, const std::string& what) {
  EXPECT_TRUE(contents(buffer) == expected)
      << what << " of " << buffer.count << " " << name(buffer.dtype);
}

// Returns parts of different sizes, one of them empty.
Counts uneven(int ranks, std::size_t unit) {
  Counts counts;
  for (int rank = 0; rank < ranks; ++rank)
    counts.push_back(rank == 1 ? 0 : unit * static_cast<std::size_t>(rank + 1) + 1);
  return counts;
}

std::size_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

std::size_t begin_of(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
}

// Even and uneven parts of several sizes: the arguments of the call, and the resulting counts.
struct Division {
  Counts given;
  Counts real;
};

std::vector<Division> divisions(int ranks) {
  std::vector<Division> all;
  for (const std::size_t each : {0, 1, 17, 5000, 40001})
    all.push_back({{}, Counts(static_cast<std::size_t>(ranks), each)});
  for (const std::size_t unit : {1, 3000, 20000}) {
    const Counts counts = uneven(ranks, unit);
    all.push_back({counts, counts});
  }
  return all;
}

// --- The suite -----------------------------------------------------------------------------------

void all_reduce_of_every_type(const ProcessGroup& group) {
  for (const Kind kind : kinds)
    for (const DType dtype : all_dtypes()) {
      Arena arena(group, kind);
      for (const std::size_t count : sizes) {
        const auto all = elements_of_all(dtype, count, group.size());
        const Buffer data = arena.input(all[static_cast<std::size_t>(group.rank())], dtype);
        group.all_reduce(data);
        expect_equal(data, reduced(all, dtype, ReduceOp::sum), "all_reduce");
      }
    }
}

void every_reduction(const ProcessGroup& group) {
  const auto n = static_cast<std::size_t>(group.size());
  constexpr std::size_t count = 3001;
  for (const DType dtype : all_dtypes())
    for (int i = 0; i < reduce_op_count; ++i) {
      const auto op = static_cast<ReduceOp>(i);
      if (comm::reduce_function(dtype, op) == nullptr) continue;
      Arena arena(group, Kind::plain);
      const auto all = elements_of_all(dtype, count * n, group.size());
      const Elements& mine = all[static_cast<std::size_t>(group.rank())];
      const Elements expected = reduced(all, dtype, op);
      const Buffer data = arena.input(mine, dtype);
      group.all_reduce(data, op);
      expect_equal(data, expected, "all_reduce");
      const Buffer part = arena.output(count, dtype);
      group.reduce_scatter(arena.input(mine, dtype), part, op);
      expect_equal(part,
                   slice(expected, static_cast<std::size_t>(group.rank()) * count, count, dtype),
                   "reduce_scatter");
      const int root = i % group.size();
      const Buffer reduced_at_root = arena.input(mine, dtype);
      group.reduce(reduced_at_root, root, op);
      expect_equal(reduced_at_root, group.rank() == root ? expected : mine, "reduce");
    }
}

void reduce_to_every_root(const ProcessGroup& group) {
  for (const Kind kind : kinds) {
    Arena arena(group, kind);
    for (int root = 0; root < group.size(); ++root)
      for (const std::size_t count : sizes) {
        const auto all = elements_of_all(DType::float32, count, group.size());
        const Elements& mine = all[static_cast<std::size_t>(group.rank())];
        const Buffer data = arena.input(mine, DType::float32);
        group.reduce(data, root);
        expect_equal(data,
                     group.rank() == root ? reduced(all, DType::float32, ReduceOp::sum) : mine,
                     "reduce");
      }
  }
}

void broadcast_from_every_root(const ProcessGroup& group) {
  for (const Kind kind : kinds) {
    Arena arena(group, kind);
    for (int root = 0; root < group.size(); ++root)
      for (const std::size_t count : sizes) {
        const Buffer data =
            arena.input(elements_of(DType::int16, count, group.rank()), DType::int16);
        group.broadcast(data, root);
        expect_equal(data, elements_of(DType::int16, count, root), "broadcast");
      }
  }
}

Buffer part_of(const Buffer& whole, std::size_t begin, std::size_t count) {
  Buffer part = whole;
  part.data = static_cast<std::byte*>(whole.data) + begin * size_of(whole.dtype);
  part.count = count;
  return part;
}

void all_gather_of_even_and_uneven_parts(const ProcessGroup& group) {
  for (const Kind kind : kinds)
    for (const auto& [given, counts] : divisions(group.size())) {
      Arena arena(group, kind);
      const auto r = static_cast<std::size_t>(group.rank());
      Elements expected;
      for (int rank = 0; rank < group.size(); ++rank)
        append(expected, elements_of(DType::int32, counts[static_cast<std::size_t>(rank)], rank));
      const Buffer output = arena.output(total(counts), DType::int32);
      group.all_gather(
          arena.input(elements_of(DType::int32, counts[r], group.rank()), DType::int32), output,
          given);
      expect_equal(output, expected, "all_gather");

      Elements own(expected.size());
      const std::size_t begin = begin_of(counts, group.rank());
      const Elements mine = elements_of(DType::int32, counts[r], group.rank());
      std::copy(mine.begin(), mine.end(), own.begin() + static_cast<std::ptrdiff_t>(begin * 4));
      const Buffer in_place = arena.input(own, DType::int32);
      group.all_gather(part_of(in_place, begin, counts[r]), in_place, given);
      expect_equal(in_place, expected, "all_gather in place");
    }
}

void reduce_scatter_of_even_and_uneven_parts(const ProcessGroup& group) {
  for (const Kind kind : kinds)
    for (const auto& [given, counts] : divisions(group.size())) {
      Arena arena(group, kind);
      const auto r = static_cast<std::size_t>(group.rank());
      const auto all = elements_of_all(DType::float64, total(counts), group.size());
      const std::size_t begin = begin_of(counts, group.rank());
      const Elements expected =
          slice(reduced(all, DType::float64, ReduceOp::sum), begin, counts[r], DType::float64);
      const Buffer input = arena.input(all[r], DType::float64);
      const Buffer output = arena.output(counts[r], DType::float64);
      group.reduce_scatter(input, output, ReduceOp::sum, given);
      expect_equal(output, expected, "reduce_scatter");
      const Buffer part = part_of(input, begin, counts[r]);
      group.reduce_scatter(input, part, ReduceOp::sum, given);
      expect_equal(part, expected, "reduce_scatter in place");
    }
}

void gather_and_scatter_at_every_root(const ProcessGroup& group) {
  for (const Kind kind : kinds)
    for (int root = 0; root < group.size(); ++root)
      for (const auto& [given, counts] : divisions(group.size())) {
        Arena arena(group, kind);
        const auto r = static_cast<std::size_t>(group.rank());
        const bool is_root = group.rank() == root;
        Elements expected;
        for (int rank = 0; rank < group.size(); ++rank)
          append(expected, elements_of(DType::uint8, counts[static_cast<std::size_t>(rank)], rank));
        const Buffer gathered = arena.output(is_root ? total(counts) : 0, DType::uint8);
        group.gather(arena.input(elements_of(DType::uint8, counts[r], group.rank()), DType::uint8),
                     gathered, root, given);
        if (is_root) expect_equal(gathered, expected, "gather");
        if (is_root) {  // The others' parts arrive beside its own, which is in place already.
          const Buffer own = part_of(gathered, begin_of(counts, root), counts[r]);
          group.gather(own, gathered, root, given);
          expect_equal(gathered, expected, "gather in place");
        } else {
          group.gather(
              arena.input(elements_of(DType::uint8, counts[r], group.rank()), DType::uint8), {},
              root, given);
        }

        const Elements whole = elements_of(DType::uint8, total(counts), root);
        const Buffer scattered = arena.output(counts[r], DType::uint8);
        const Buffer all = is_root ? arena.input(whole, DType::uint8) : Buffer{};
        group.scatter(all, scattered, root, given);
        const Elements mine = slice(whole, begin_of(counts, group.rank()), counts[r], DType::uint8);
        expect_equal(scattered, mine, "scatter");
        const Buffer own = is_root ? part_of(all, begin_of(counts, root), counts[r]) : scattered;
        group.scatter(all, own, root, given);
        expect_equal(own, mine, "scatter in place");
      }
}

// Returns the data from rank s to rank d; its beginning identifies both.
Elements sent(int s, int d, std::size_t count) {
  return elements_of(DType::float32, count, s * 3 + d);
}

void all_to_all_of_even_and_uneven_parts(const ProcessGroup& group) {
  const int n = group.size();
  for (const Kind kind : kinds)
    for (const std::size_t unit : {0, 1, 17, 5000, 33000})
      for (const bool even : {true, false}) {
        const auto count = [&](int s, int d) {
          return even ? unit : unit * static_cast<std::size_t>((s + 2 * d) % 3) + (s == d ? 1 : 0);
        };
        Arena arena(group, kind);
        Counts sends;
        Counts receives;
        Elements input;
        Elements expected;
        for (int peer = 0; peer < n; ++peer) {
          sends.push_back(count(group.rank(), peer));
          receives.push_back(count(peer, group.rank()));
          append(input, sent(group.rank(), peer, sends.back()));
          append(expected, sent(peer, group.rank(), receives.back()));
        }
        const Buffer output = arena.output(total(receives), DType::float32);
        if (even)
          group.all_to_all(arena.input(input, DType::float32), output);
        else
          group.all_to_all(arena.input(input, DType::float32), output, sends, receives);
        expect_equal(output, expected, "all_to_all");
      }
}

void asynchronous_calls_keep_their_order(const ProcessGroup& group) {
  const auto n = static_cast<std::size_t>(group.size());
  const auto r = static_cast<std::size_t>(group.rank());
  constexpr std::size_t count = 500;
  const auto all = elements_of_all(DType::float32, count * n, group.size());
  const Elements sum = reduced(all, DType::float32, ReduceOp::sum);
  Arena arena(group, Kind::plain);
  const Buffer reduced_data = arena.input(all[r], DType::float32);
  const Buffer to_root = arena.input(all[r], DType::float32);
  const Buffer copied = arena.input(all[r], DType::float32);
  const Buffer part = arena.output(count, DType::float32);
  const Buffer gathered = arena.output(count * n * n, DType::float32);
  const Buffer at_root = arena.output(count * n * n, DType::float32);
  const Buffer scattered = arena.output(count, DType::float32);
  const Buffer exchanged = arena.output(count * n, DType::float32);
  const Buffer input = arena.input(all[r], DType::float32);
  const std::vector<Work> works{group.all_reduce_async(reduced_data),
                                group.reduce_async(to_root, 0),
                                group.broadcast_async(copied, 0),
                                group.reduce_scatter_async(input, part),
                                group.all_gather_async(input, gathered),
                                group.gather_async(input, at_root, 0),
                                group.scatter_async(input, scattered, 0),
                                group.all_to_all_async(input, exchanged),
                                group.barrier_async()};
  group.barrier();  // After all calls.
  for (const Work& work : works) {
    EXPECT_TRUE(work.is_completed());
    work.wait();
  }
  expect_equal(reduced_data, sum, "all_reduce_async");
  expect_equal(to_root, r == 0 ? sum : all[r], "reduce_async");
  expect_equal(copied, all[0], "broadcast_async");
  expect_equal(part, slice(sum, r * count, count, DType::float32), "reduce_scatter_async");
  expect_equal(scattered, slice(all[0], r * count, count, DType::float32), "scatter_async");
  Elements everything;
  for (const Elements& one : all) append(everything, one);
  expect_equal(gathered, everything, "all_gather_async");
  if (r == 0) expect_equal(at_root, everything, "gather_async");
  Elements columns;
  for (const Elements& one : all) append(columns, slice(one, r * count, count, DType::float32));
  expect_equal(exchanged, columns, "all_to_all_async");
}

void sums_are_the_same_bits_everywhere_and_every_time(const ProcessGroup& group) {
  Arena arena(group, Kind::plain);
  constexpr std::size_t count = 70001;
  std::vector<float> mine(count);
  for (std::size_t i = 0; i < count; ++i)
    mine[i] = 1.0F / static_cast<float>(i + 1 + static_cast<std::size_t>(group.rank()) * 977);
  Elements first;
  for (int repetition = 0; repetition < 5; ++repetition) {
    Elements bits(count * sizeof(float));
    std::memcpy(bits.data(), mine.data(), bits.size());
    const Buffer data = arena.input(bits, DType::float32);
    group.all_reduce(data);
    const Buffer of_rank_zero = arena.input(contents(data), DType::float32);
    group.broadcast(of_rank_zero, 0);
    expect_equal(data, contents(of_rank_zero), "sum on rank 0");
    if (repetition == 0) first = contents(data);
    expect_equal(data, first, "sum of the first time");
  }
}

void messages_go_round_a_ring(const ProcessGroup& group) {
  if (group.size() == 1) return;
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  Arena arena(group, Kind::plain);
  for (const std::size_t count : {0, 1, 1000, 65536, 300000}) {
    const Buffer out =
        arena.input(elements_of(DType::float32, count, group.rank()), DType::float32);
    const Buffer in = arena.output(count, DType::float32);
    const Work sending = group.send_async(out, next, 7);  // Longer than the capacity of a ring.
    const Source source = group.recv(in, previous, 7);
    sending.wait();
    EXPECT_EQ(source.rank, previous);
    EXPECT_EQ(source.tag, 7);
    expect_equal(in, elements_of(DType::float32, count, previous), "message");
  }
}

void messages_are_taken_by_tag_and_from_any_source(const ProcessGroup& group) {
  const int n = group.size();
  if (n == 1) return;
  constexpr std::size_t count = 20000;
  Arena arena(group, Kind::plain);
  if (group.rank() == 0) {
    for (int from = 1; from < n; ++from)
      for (const std::int64_t tag : {3, 1, 2}) {  // Not in the order of arrival.
        const Buffer in = arena.output(count, DType::int32);
        EXPECT_EQ(group.recv(in, from, tag).tag, tag);
        expect_equal(in, elements_of(DType::int32, count, from + static_cast<int>(tag)), "message");
      }
    std::vector<int> seen;
    for (int i = 1; i < n; ++i) {
      const Buffer in = arena.output(10, DType::int32);
      const Work work = group.recv_async(in, any_source, 9);
      work.wait();
      seen.push_back(work.source().rank);
      expect_equal(in, elements_of(DType::int32, 10, seen.back()), "message from any source");
    }
    std::sort(seen.begin(), seen.end());
    for (int i = 1; i < n; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i - 1)], i);
  } else {
    std::vector<Work> works;
    for (const std::int64_t tag : {1, 2, 3})
      works.push_back(group.send_async(
          arena.input(elements_of(DType::int32, count, group.rank() + static_cast<int>(tag)),
                      DType::int32),
          0, tag));
    for (const Work& work : works) work.wait();
    group.send(arena.input(elements_of(DType::int32, 10, group.rank()), DType::int32), 0, 9);
  }
}

void sub_groups_by_color_and_by_ranks(const ProcessGroup& group) {
  const int n = group.size();
  const auto sum_of = [](const ProcessGroup& over, std::int64_t value) {
    over.all_reduce({.data = &value, .count = 1, .dtype = DType::int64});
    return value;
  };
  ProcessGroup half = group.split(group.rank() % 2, -group.rank());  // In reverse order.
  std::int64_t expected = 0;
  int members = 0;
  for (int rank = group.rank() % 2; rank < n; rank += 2) {
    expected += rank;
    ++members;
  }
  EXPECT_EQ(half.size(), members);
  EXPECT_EQ(half.rank(), members - 1 - group.rank() / 2);
  EXPECT_EQ(sum_of(half, group.rank()), expected);

  auto ends = group.new_group(n == 1 ? std::vector<int>{0} : std::vector<int>{n - 1, 0});
  EXPECT_EQ(ends.has_value(), group.rank() == 0 || group.rank() == n - 1);
  if (ends) {
    EXPECT_EQ(ends->rank(), n > 1 && group.rank() == 0 ? 1 : 0);
    EXPECT_EQ(sum_of(*ends, group.rank()), n - 1);
  }
  ProcessGroup nested = half.split(0);
  EXPECT_EQ(sum_of(nested, group.rank()), expected);
  destroy_process_group(nested);
  if (ends) destroy_process_group(*ends);
  EXPECT_EQ(sum_of(group, 1), n);  // `half` lives until the world's end.
}

// Each row has a kernel or a composition on every backend. Other cases compare results.
void every_operation_of_the_table(const ProcessGroup& group) {
  constexpr std::size_t each = 5;
  const std::size_t all = each * static_cast<std::size_t>(group.size());
  for (const OperationFacts& facts : operation_table) {
    if (facts.shape == OperationShape::none) continue;
    Arena arena(group, Kind::plain);
    const CollectiveArguments given{
        .input = arena.output(has_input_parts(facts.operation) ? all : each, DType::int32),
        .output = arena.output(has_output_parts(facts.operation) ? all : each, DType::int32)};
    EXPECT_NO_THROW(run_collective(group, facts.operation, given)) << facts.name;
    EXPECT_NO_THROW(run_collective_async(group, facts.operation, given).wait()) << facts.name;
  }
}

// A sequence of collectives of all sizes, in every kind of memory, with random delays of ranks.
void operations_of_mixed_sizes(const ProcessGroup& group) {
  Arena registered(group, Kind::registered);
  std::uint64_t random = 88172645463325252;  // The same on all ranks.
  const auto below = [&](std::uint64_t limit) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random % limit;
  };
#if defined(__SANITIZE_THREAD__)
  constexpr int calls = 60;
#else
  constexpr int calls = 300;
#endif
  for (int call = 0; call < calls; ++call) {
    Arena plain(group, Kind::plain);
    Arena& arena = below(4) == 0 ? registered : plain;
    const std::size_t count = below(3) == 0 ? below(1500) : below(90000);
    const int root = static_cast<int>(below(static_cast<std::uint64_t>(group.size())));
    const auto dawdler = static_cast<int>(below(static_cast<std::uint64_t>(group.size())));
    if (group.rank() == dawdler) std::this_thread::sleep_for(std::chrono::microseconds(count % 60));
    const auto all = elements_of_all(DType::int32, count, group.size());
    const Buffer data = arena.input(all[static_cast<std::size_t>(group.rank())], DType::int32);
    Elements everything;
    for (const Elements& one : all) append(everything, one);
    const Buffer output = arena.output(count * all.size(), DType::int32);
    switch (below(3)) {
      case 0:
        group.all_reduce(data);
        expect_equal(data, reduced(all, DType::int32, ReduceOp::sum), "all_reduce");
        break;
      case 1:
        group.broadcast(data, root);
        expect_equal(data, all[static_cast<std::size_t>(root)], "broadcast");
        break;
      default:
        group.all_gather(data, output);
        expect_equal(output, everything, "all_gather");
        break;
    }
  }
}

// Larger than a staging buffer, and than any cache.
void large_ones(const ProcessGroup& group) {
  constexpr std::size_t count = 1'400'003;
  for (const Kind kind : {Kind::plain, Kind::registered}) {
    Arena arena(group, kind);
    const auto all = elements_of_all(DType::float32, count, group.size());
    const Elements& mine = all[static_cast<std::size_t>(group.rank())];
    const Buffer data = arena.input(mine, DType::float32);
    group.all_reduce(data);
    expect_equal(data, reduced(all, DType::float32, ReduceOp::sum), "all_reduce");
    const Buffer copy = arena.input(mine, DType::float32);
    group.broadcast(copy, 0);
    expect_equal(copy, all[0], "broadcast");
    Elements everything;
    for (const Elements& one : all) append(everything, one);
    const Buffer gathered = arena.output(count * all.size(), DType::float32);
    group.all_gather(arena.input(mine, DType::float32), gathered);
    expect_equal(gathered, everything, "all_gather");
  }
}

void the_flight_recorder_knows_the_last_operations(const ProcessGroup& group) {
  float value = 1;
  group.all_reduce({.data = &value, .count = 1}, ReduceOp::max, {.label = "here"});
  const std::string record = group.flight_record();
  EXPECT_NE(record.find("\"operation\":\"all_reduce\""), std::string::npos) << record;
  EXPECT_NE(record.find("\"reduction\":\"max\""), std::string::npos) << record;
  EXPECT_NE(record.find("\"phase\":\"completed\""), std::string::npos) << record;
  EXPECT_NE(record.find("\"label_hash\":"), std::string::npos) << record;
}

}  // namespace

const std::vector<Conformance>& conformance_suite() {
  static const std::vector<Conformance> suite{
      {"AllReduceOfEveryType", all_reduce_of_every_type},
      {"EveryReduction", every_reduction},
      {"ReduceToEveryRoot", reduce_to_every_root},
      {"BroadcastFromEveryRoot", broadcast_from_every_root},
      {"AllGatherOfEvenAndUnevenParts", all_gather_of_even_and_uneven_parts},
      {"ReduceScatterOfEvenAndUnevenParts", reduce_scatter_of_even_and_uneven_parts},
      {"GatherAndScatterAtEveryRoot", gather_and_scatter_at_every_root},
      {"AllToAllOfEvenAndUnevenParts", all_to_all_of_even_and_uneven_parts},
      {"AsynchronousCallsKeepTheirOrder", asynchronous_calls_keep_their_order},
      {"SumsAreTheSameBitsEverywhereAndEveryTime",
       sums_are_the_same_bits_everywhere_and_every_time},
      {"MessagesGoRoundARing", messages_go_round_a_ring},
      {"MessagesAreTakenByTagAndFromAnySource", messages_are_taken_by_tag_and_from_any_source},
      {"SubGroupsByColorAndByRanks", sub_groups_by_color_and_by_ranks},
      {"EveryOperationOfTheTable", every_operation_of_the_table},
      {"OperationsOfMixedSizes", operations_of_mixed_sizes},
      {"LargeOnes", large_ones},
      {"TheFlightRecorderKnowsTheLastOperations", the_flight_recorder_knows_the_last_operations},
  };
  return suite;
}

}  // namespace lockstep::test
