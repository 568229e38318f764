// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/collectives.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/tensor/tensor_lists.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::tensor::collectives_test {
namespace {

using test::fault_of;
using test::Rank;
using test::Ranks;

// Types that cannot be reduced come last.
constexpr at::ScalarType all_types[] = {
    at::kFloat,         at::kDouble,        at::kHalf,        at::kBFloat16,    at::kChar,
    at::kShort,         at::kInt,           at::kLong,        at::kByte,        at::kUInt16,
    at::kUInt32,        at::kUInt64,        at::kBool,        at::kComplexHalf, at::kComplexFloat,
    at::kComplexDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2,
};
constexpr std::span reducible_types(all_types, std::size(all_types) - 2);

// Exact in every type.
at::Tensor values(at::IntArrayRef sizes, int rank, at::ScalarType type) {
  const at::Tensor plain = at::arange(at::empty(sizes).numel(), at::kDouble)
                               .mul(rank + 1)
                               .add(rank)
                               .remainder(5)
                               .view(sizes);
  if (!c10::isComplexType(type)) return plain.to(type);
  return at::complex(plain, plain.add(1)).to(type);
}

at::Tensor mine(int rank, at::ScalarType type) { return values({3, 4}, rank, type); }

at::Tensor sum(int world_size, at::ScalarType type, at::IntArrayRef sizes = {3, 4}) {
  const bool complex = c10::isComplexType(type);
  const auto wide = complex ? at::kComplexDouble : at::kDouble;
  at::Tensor total = at::zeros(sizes, wide);
  for (int rank = 0; rank < world_size; ++rank) total.add_(values(sizes, rank, type).to(wide));
  return total.to(type);
}

// Works also for types that ATen cannot compare.
testing::AssertionResult same(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes())
    return testing::AssertionFailure()
           << a.toString() << a.sizes() << " and " << b.toString() << b.sizes();
  const at::Tensor x = a.contiguous().resolve_conj();
  const at::Tensor y = b.contiguous().resolve_conj();
  if (x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0)
    return testing::AssertionSuccess();
  return testing::AssertionFailure() << "other values of type " << a.toString();
}

void on_ranks(const std::function<void(ProcessGroup&)>& body) {
  for (const int ranks : {1, 2, 3}) run_in_process(ranks, body, std::chrono::seconds(30));
}

TEST(TensorCollectives, ReduceEveryTypeThatHasASum) {
  on_ranks([](ProcessGroup& group) {
    for (const auto type : reducible_types) {
      const at::Tensor expected = sum(group.size(), type);
      at::Tensor whole = mine(group.rank(), type);
      all_reduce(whole, group);
      EXPECT_TRUE(same(whole, expected));
      at::Tensor at_root = mine(group.rank(), type);
      reduce(at_root, group, group.size() - 1);
      const bool is_root = group.rank() == group.size() - 1;
      EXPECT_TRUE(same(at_root, is_root ? expected : mine(group.rank(), type)));

      const at::Tensor wide = values({group.size() * 2, 3}, group.rank(), type);
      const at::Tensor total = sum(group.size(), type, {group.size() * 2, 3});
      EXPECT_TRUE(same(reduce_scatter(wide, group), total.narrow(0, group.rank() * 2, 2)));
    }
  });
}

TEST(TensorCollectives, MoveEveryType) {
  on_ranks([](ProcessGroup& group) {
    const int n = group.size();
    const int last = n - 1;
    for (const auto type : all_types) {
      at::Tensor copied = mine(group.rank(), type);
      broadcast(copied, group, last);
      EXPECT_TRUE(same(copied, mine(last, type)));
      const at::Tensor all = all_gather(mine(group.rank(), type), group);
      const at::Tensor at_root = gather(mine(group.rank(), type), group, last);
      ASSERT_EQ(at_root.defined(), group.rank() == last);
      for (int r = 0; r < n; ++r) EXPECT_TRUE(same(all[r], mine(r, type)));
      if (group.rank() == last) {
        EXPECT_TRUE(same(at_root, all));
      }
      at::Tensor part = mine(7, type);
      scatter(part, group.rank() == last ? all : at::Tensor(), group, last);
      EXPECT_TRUE(same(part, mine(group.rank(), type)));
      const at::Tensor exchanged = all_to_all(values({n, 2}, group.rank(), type), group);
      for (int r = 0; r < n; ++r)
        EXPECT_TRUE(same(exchanged[r], values({n, 2}, r, type)[group.rank()]));
    }
  });
}

TEST(TensorCollectives, KeepTheStridesOfWhatTheyWrite) {
  on_ranks([](ProcessGroup& group) {
    const int last = group.size() - 1;
    for (const auto type : {at::kFloat, at::kShort, at::kComplexFloat, at::kFloat8_e5m2}) {
      at::Tensor column = mine(group.rank(), type);
      broadcast(column.select(1, 2), group, last);
      EXPECT_TRUE(same(column.select(1, 2), mine(last, type).select(1, 2)));
      EXPECT_TRUE(same(column.select(1, 1), mine(group.rank(), type).select(1, 1)));
      at::Tensor part = at::empty({4, 3}, type).t();
      const at::Tensor all = all_gather(mine(group.rank(), type).t(), group);
      scatter(part, all.transpose(1, 2), group, last);
      EXPECT_TRUE(same(part, mine(group.rank(), type)));
      if (type == at::kFloat8_e5m2) continue;
      at::Tensor transposed = mine(group.rank(), type).t();
      all_reduce(transposed, group);
      EXPECT_TRUE(same(transposed, sum(group.size(), type).t()));
      at::Tensor at_root = mine(group.rank(), type).t();
      reduce(at_root, group, 0);
      EXPECT_TRUE(same(
          at_root, (group.rank() == 0 ? sum(group.size(), type) : mine(group.rank(), type)).t()));
    }
  });
}

TEST(TensorCollectives, SeeTheValuesOfALazyConjugate) {
  on_ranks([](ProcessGroup& group) {
    const at::Tensor conjugate = mine(group.rank(), at::kComplexFloat).conj();
    all_reduce(conjugate, group);
    EXPECT_TRUE(same(conjugate, sum(group.size(), at::kComplexFloat).conj()));
    EXPECT_TRUE(same(all_gather(conjugate, group)[0], sum(group.size(), at::kComplexFloat).conj()));
    EXPECT_EQ(fault_of([&] { all_reduce_async(conjugate, group); }), Fault::misuse);
  });
}

// The deprecated form without splits must not make this ambiguous.
static_assert(requires(const at::Tensor& output, const at::Tensor& tensor,
                       const ProcessGroup& group) { all_gather_async(output, tensor, group, {}); });

TEST(TensorCollectives, RunInPlaceTakesOnlyOperationsInPlace) {
  on_ranks([](ProcessGroup& group) {
    for (const OperationFacts& facts : operation_table) {
      const at::Tensor tensor = mine(group.rank(), at::kFloat);
      const auto run = [&] { run_in_place(tensor, group, facts.operation); };
      if (facts.shape != OperationShape::in_place) {
        EXPECT_EQ(fault_of(run), Fault::misuse) << facts.name;
        continue;
      }
      run();
      run_in_place_async(tensor, group, facts.operation).wait();
    }
    std::string text;
    const at::Tensor transposed = mine(group.rank(), at::kFloat).t();
    EXPECT_EQ(fault_of([&] { reduce_async(transposed, group); }, &text), Fault::misuse);
    EXPECT_NE(text.find("reduce_async: the tensor must be contiguous"), text.npos) << text;
  });
}

TEST(TensorCollectives, PassTheOperationOn) {
  run_in_process(3, [](ProcessGroup& group) {
    const auto reduced = [&](ReduceOp op, at::ScalarType type) {
      const at::Tensor tensor = at::full({2}, group.rank() + 1, type);
      all_reduce(tensor, group, op);
      return tensor[1].item<double>();
    };
    EXPECT_EQ(reduced(ReduceOp::average, at::kHalf), 2);
    EXPECT_EQ(reduced(ReduceOp::product, at::kDouble), 6);
    EXPECT_EQ(reduced(ReduceOp::min, at::kInt), 1);
    EXPECT_EQ(reduced(ReduceOp::max, at::kByte), 3);
    EXPECT_EQ(reduced(ReduceOp::band, at::kLong), 0);
    EXPECT_EQ(reduced(ReduceOp::bor, at::kShort), 3);
    EXPECT_EQ(reduced(ReduceOp::bxor, at::kChar), 0);
    const at::Tensor complex = at::full({2}, group.rank(), at::kComplexDouble);
    all_reduce(complex, group, ReduceOp::average);
    EXPECT_TRUE(same(complex, at::ones({2}, at::kComplexDouble)));
  });
}

// Sums wrap, and quotients are truncated towards zero, as in NCCL. Two ranks use a separate kernel.
TEST(TensorCollectives, TruncateAveragesOfIntegersTowardsZero) {
  constexpr at::ScalarType types[] = {at::kChar, at::kShort,  at::kInt,    at::kLong,
                                      at::kByte, at::kUInt16, at::kUInt32, at::kUInt64};
  for (const int ranks : {2, 3})
    run_in_process(ranks, [&](ProcessGroup& group) {
      const std::int64_t own = group.rank() == 0 ? 3 : 2;  // In all 5 or 7.
      const std::int64_t signs[] = {1, -1};
      for (const at::ScalarType type : types)
        for (const std::int64_t sign : signs) {
          if (sign < 0 && !at::isSignedType(type)) continue;
          const at::Tensor values = at::full({6}, sign * own, at::kLong).to(type);
          const at::Tensor means = at::full({6}, sign * 2, at::kLong).to(type);
          SCOPED_TRACE(testing::Message() << c10::toString(type) << " on " << ranks << " ranks");
          at::Tensor tensor = values.clone();
          all_reduce(tensor, group, ReduceOp::average);
          EXPECT_TRUE(same(tensor, means));
          tensor = values.clone();
          all_reduce_coalesced({tensor}, group, ReduceOp::average);
          EXPECT_TRUE(same(tensor, means));
          tensor = values.clone();
          reduce(tensor, group, 0, ReduceOp::average);
          EXPECT_TRUE(group.rank() != 0 || same(tensor, means));
          EXPECT_TRUE(same(reduce_scatter(values, group, ReduceOp::average),
                           means.slice(0, 0, 6 / group.size())));
        }
      const at::Tensor large = at::full({2}, 100, at::kChar);
      all_reduce(large, group, ReduceOp::average);
      EXPECT_EQ(large[1].item<int>(), ranks == 2 ? -28 : 14);  // For -56, and for 44.
    });
}

// Rank r has r rows.
TEST(TensorCollectives, TakeTensorsOfUnequalRows) {
  on_ranks([](ProcessGroup& group) {
    const int n = group.size();
    for (const auto type : {at::kFloat, at::kComplexDouble, at::kFloat8_e4m3fn, at::kBool}) {
      std::vector<at::Tensor> expected;
      std::vector<std::int64_t> splits;
      for (int r = 0; r < n; ++r) {
        expected.push_back(values({r, 3}, r, type));
        splits.push_back(r);
      }
      const at::Tensor own = expected[static_cast<std::size_t>(group.rank())];
      const auto all = all_gather_uneven(own, group);
      ASSERT_EQ(all.size(), expected.size());
      for (std::size_t r = 0; r < all.size(); ++r) EXPECT_TRUE(same(all[r], expected[r]));
      const auto at_root = gather_uneven(own, group, n - 1);
      ASSERT_EQ(at_root.size(), group.rank() == n - 1 ? expected.size() : 0U);
      for (std::size_t r = 0; r < at_root.size(); ++r) EXPECT_TRUE(same(at_root[r], expected[r]));

      const at::Tensor joined = at::empty({n * (n - 1) / 2, 3}, type);
      all_gather_async(joined, own, group, splits).wait();
      for (int r = 0, begin = 0; r < n; begin += r++)
        EXPECT_TRUE(same(joined.narrow(0, begin, r), expected[static_cast<std::size_t>(r)]));
      at::Tensor part = at::empty(own.sizes(), type);
      scatter(part, joined, group, 0, splits);
      EXPECT_TRUE(same(part, own));
      if (type == at::kFloat8_e4m3fn) continue;
      const at::Tensor whole = values(joined.sizes(), group.rank(), type);
      const at::Tensor total = sum(n, type, joined.sizes());
      EXPECT_TRUE(same(reduce_scatter(whole, group, ReduceOp::sum, splits),
                       total.narrow(0, group.rank() * (group.rank() - 1) / 2, group.rank())));
    }
  });
}

TEST(TensorCollectives, ExchangeUnequalRowsWhoseNumbersTheReceiverMayNotKnow) {
  on_ranks([](ProcessGroup& group) {
    std::vector<at::Tensor> sent;
    std::vector<at::Tensor> expected;
    std::vector<std::int64_t> splits;
    for (int r = 0; r < group.size(); ++r) {
      splits.push_back(group.rank() + r);
      sent.push_back(at::full({splits.back(), 2}, 10 * group.rank() + r, at::kInt));
      expected.push_back(at::full({splits.back(), 2}, 10 * r + group.rank(), at::kInt));
    }
    const at::Tensor input = at::cat(sent);
    EXPECT_TRUE(same(all_to_all(input, group, splits, splits), at::cat(expected)));
    EXPECT_TRUE(
        same(all_to_all_uneven(input.t().contiguous().t(), group, splits), at::cat(expected)));
    const at::Tensor output = at::zeros(input.sizes(), at::kInt);
    all_to_all_async(output, input, group, splits, splits).wait();
    EXPECT_TRUE(same(output, at::cat(expected)));
  });
}

TEST(TensorCollectives, SendAndReceiveFromWhomeverComes) {
  run_in_process(3, [](ProcessGroup& group) {
    const at::Tensor own = mine(group.rank(), at::kBFloat16);
    if (group.rank() != 0) {
      send(own.t(), group, 0, 5);
      send_async(mine(group.rank(), at::kFloat8_e5m2), group, 0, 6).wait();
      return;
    }
    for (int i = 0; i < 2; ++i) {
      const at::Tensor received = at::zeros({3, 4}, at::kBFloat16).t();
      const Source source = recv(received, group, any_source, 5);
      EXPECT_EQ(source.tag, 5);
      EXPECT_TRUE(same(received.t(), mine(source.rank, at::kBFloat16)));
    }
    for (int peer = 1; peer < 3; ++peer) {
      const at::Tensor received = at::empty({3, 4}, at::kFloat8_e5m2);
      const Work work = recv_async(received, group, peer);
      work.wait();
      EXPECT_EQ(work.source().rank, peer);
      EXPECT_TRUE(same(received, mine(peer, at::kFloat8_e5m2)));
    }
  });
}

TEST(TensorCollectives, WorkInSubgroups) {
  run_in_process(3, [](ProcessGroup& world) {
    const auto group = world.new_group({2, 0});
    ASSERT_EQ(group.has_value(), world.rank() != 1);
    if (!group) return;
    EXPECT_TRUE(same(all_gather(mine(world.rank(), at::kInt), *group)[0], mine(2, at::kInt)));
  });
}

// --- Lists ---------------------------------------------------------------------------------------

std::vector<at::Tensor> list_of(int rank) {
  const at::Tensor thirds = at::arange(24, at::kFloat).add(rank + 1).div(3).view({4, 6});
  return {thirds.clone(),
          values({5}, rank, at::kHalf),
          thirds.t().div(7),
          at::empty({0, 3}),
          values({2, 2}, rank, at::kComplexFloat),
          at::full({9 << 20}, 1.0F / static_cast<float>(rank + 3)),  // Exceeds a chunk.
          at::full({}, static_cast<float>(rank) + 0.1F),
          values({4}, rank, at::kUInt16)};
}

TEST(CoalescedTensors, AreReducedAsOneCallEachWouldDo) {
  on_ranks([](ProcessGroup& group) {
    const auto together = list_of(group.rank());
    const auto one_by_one = list_of(group.rank());
    all_reduce_coalesced(together, group);
    for (const at::Tensor& tensor : one_by_one) all_reduce(tensor, group);
    for (std::size_t i = 0; i < together.size(); ++i)
      EXPECT_TRUE(same(together[i], one_by_one[i])) << i;
    all_reduce_coalesced({}, group);
  });
}

TEST(CoalescedTensors, AreBroadcastOfEveryType) {
  on_ranks([](ProcessGroup& group) {
    const int root = group.size() - 1;
    auto tensors = list_of(group.rank());
    auto expected = list_of(root);
    for (const auto type : all_types) {
      tensors.push_back(mine(group.rank(), type).t());
      tensors.push_back(mine(group.rank() + 1, type));
      expected.push_back(mine(root, type).t());
      expected.push_back(mine(root + 1, type));
    }
    broadcast_coalesced(tensors, group, root);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      EXPECT_TRUE(same(tensors[i], expected[i])) << i;
  });
}

TEST(CoalescedTensors, AreAllExaminedBeforeAnyIsSent) {
  run_in_process(2, [](ProcessGroup& group) {
    const at::Tensor good = at::ones({2});
    for (const at::Tensor& bad : {at::ones({2}, at::kBool), at::ones({2}, at::kFloat8_e5m2)})
      EXPECT_EQ(fault_of([&] {
                  all_reduce_coalesced({good, bad}, group, ReduceOp::average);
                }),
                Fault::unsupported);
    EXPECT_EQ(fault_of([&] {
                all_reduce_coalesced({good, at::ones({1}).expand(3)}, group);
              }),
              Fault::misuse);
    EXPECT_TRUE(same(good, at::ones({2})));
  });
}

TEST(CoalescedTensors, ThatAreReducedAndShareMemoryAreMisuse) {
  run_in_process(2, [](const ProcessGroup& group) {
    const at::Tensor whole = at::ones({10});
    const at::Tensor columns = at::ones({4, 2});
    std::string text;
    EXPECT_EQ(
        fault_of(
            [&] {
              all_reduce_coalesced({at::ones({3}), whole.slice(0, 0, 6), whole.slice(0, 4)}, group);
            },
            &text),
        Fault::misuse);
    EXPECT_NE(text.find("overlap by 8 bytes"), text.npos) << text;
    EXPECT_EQ(fault_of([&] { reduce_coalesced({whole, whole}, group); }), Fault::misuse);
    broadcast_coalesced({whole, whole}, group);
    all_reduce_coalesced(
        {whole.slice(0, 0, 5), whole.slice(0, 5), columns.select(1, 0), columns.select(1, 1)},
        group);
    EXPECT_TRUE(whole.equal(at::ones({10}).mul(2))) << whole;
    EXPECT_TRUE(columns.equal(at::ones({4, 2}).mul(2))) << columns;
  });
}

TEST(TensorCollectives, AnOutputThatOverlapsItsInputIsMisuse) {
  run_in_process(2, [](const ProcessGroup& group) {
    const at::Tensor whole = at::ones({8});
    std::string text;
    EXPECT_EQ(fault_of(
                  [&] {
                    all_gather_async(whole.view({2, 4}), whole.slice(0, 2, 6), group);
                  },
                  &text),
              Fault::misuse);
    EXPECT_NE(text.find("of 16 and 32 bytes, overlap by 16"), text.npos) << text;
    EXPECT_EQ(fault_of([&] { all_to_all_async(whole, whole, group); }), Fault::misuse);
    group.barrier();
  });
}

TEST(CoalescedTensors, AreOfTheSameShapesOnAllRanks) {
  const auto body = [](ProcessGroup& group) {
    const at::Tensor other = group.rank() == 0 ? at::ones({3, 2}) : at::ones({2, 3});
    all_reduce_coalesced({at::ones({2}), other}, group);
  };
  EXPECT_EQ(fault_of([&] { run_in_process(2, body); }), Fault::mismatch);
}

// --- Asynchronous --------------------------------------------------------------------------------

const Ranks asynchronous("asynchronous tensors", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  const int n = group.size();
  const auto own = [&] { return mine(rank.rank, at::kFloat); };
  const at::Tensor reduced = own();
  const at::Tensor copied = own();
  const at::Tensor at_root = own();
  const at::Tensor gathered = at::zeros({n, 4, 3});
  const at::Tensor collected = at::zeros({n, 3, 4});
  const at::Tensor part = at::zeros({3, 4});
  const at::Tensor summed = at::zeros({2, 3});
  const at::Tensor exchanged = at::zeros({n, 2});
  at::Tensor parts;
  if (rank.rank == 1) parts = at::stack({mine(0, at::kFloat), mine(1, at::kFloat)});
  all_reduce_async(own(), group);
  const std::vector<Work> works{
      all_reduce_async(reduced, group),
      broadcast_async(copied, group, 1),
      reduce_async(at_root, group, 1),
      all_gather_async(gathered, own().t(), group),
      gather_async(rank.rank == 1 ? collected : at::Tensor(), own(), group, 1),
      scatter_async(part, parts, group, 1),
      reduce_scatter_async(summed, values({2 * n, 3}, rank.rank, at::kFloat), group),
      all_to_all_async(exchanged, values({n, 2}, rank.rank, at::kFloat), group)};
  for (const Work& work : works) work.wait();
  EXPECT_TRUE(same(reduced, sum(n, at::kFloat)));
  EXPECT_TRUE(same(copied, mine(1, at::kFloat)));
  EXPECT_TRUE(same(at_root, rank.rank == 1 ? sum(n, at::kFloat) : own()));
  EXPECT_TRUE(same(part, own()));
  EXPECT_TRUE(same(summed, sum(n, at::kFloat, {2 * n, 3}).narrow(0, rank.rank * 2, 2)));
  for (int r = 0; r < n; ++r) {
    EXPECT_TRUE(same(gathered[r], mine(r, at::kFloat).t()));
    EXPECT_TRUE(same(collected[r], rank.rank == 1 ? mine(r, at::kFloat) : at::zeros({3, 4})));
    EXPECT_TRUE(same(exchanged[r], values({n, 2}, r, at::kFloat)[rank.rank]));
  }
  const at::Tensor strided = own().t();
  EXPECT_EQ(fault_of([&] { all_reduce_async(strided, group); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { recv_async(strided, group); }), Fault::misuse);
  destroy_process_group(group);
});

TEST(TensorCollectives, AsynchronousOnesKeepTheirTensorsAlive) {
  EXPECT_TRUE(all_succeeded(asynchronous.run(2)));
}

TEST(TensorCollectives, KeepWhatTheCallerWantsKept) {
  auto callers = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = callers;
  run_in_process(1, [&](ProcessGroup& group) {
    const Work work =
        all_reduce_async(at::ones({2}), group, ReduceOp::sum, {.keep_alive = std::move(callers)});
    work.wait();
  });
  EXPECT_TRUE(watched.expired());
}

// --- Registered memory ---------------------------------------------------------------------------

const Ranks registered("registered tensors", [](const Rank& rank) {
  at::Tensor outlives;
  {
    ProcessGroup group = init_process_group();
    outlives = registered_zeros({3, 4}, at::kDouble, group);
    EXPECT_TRUE(at::equal(outlives, at::zeros({3, 4}, at::kDouble)));
    const void* before = outlives.data_ptr();
    outlives.copy_(mine(rank.rank, at::kDouble));
    all_reduce(outlives, group);
    EXPECT_EQ(outlives.data_ptr(), before);
    destroy_process_group(group);
  }
  EXPECT_TRUE(same(outlives, sum(rank.world_size, at::kDouble)));
  outlives.add_(1);
});

TEST(TensorCollectives, RegisteredTensorsOutliveTheirGroup) {
  EXPECT_TRUE(all_succeeded(registered.run(2)));
}

// --- Errors --------------------------------------------------------------------------------------

TEST(TensorCollectives, ShapesAndTypesThatDifferAreAMismatchOfEverySize) {
  const auto expect_mismatch = [](const std::function<void(const ProcessGroup&, at::Tensor)>& call,
                                  const at::Tensor& a, const at::Tensor& b) {
    const auto body = [&](ProcessGroup& group) {
      call(group, group.rank() == 0 ? a.clone() : b.clone());
    };
    EXPECT_EQ(fault_of([&] { run_in_process(2, body); }), Fault::mismatch);
  };
  const at::Tensor a = at::ones({4, 6});
  const at::Tensor b = at::ones({6, 4});
  expect_mismatch([](auto& group, auto tensor) { all_reduce(tensor, group); }, a, b);
  expect_mismatch([](auto& group, auto tensor) { broadcast(tensor, group); }, a, b);
  expect_mismatch([](auto& group, auto tensor) { reduce(tensor, group); }, a, b);
  expect_mismatch([](auto& group, auto tensor) { all_gather(tensor, group); }, a, b);
  expect_mismatch([](auto& group, auto tensor) { gather(tensor, group); }, a, b);
  expect_mismatch([](auto& group, auto tensor) { all_to_all(tensor, group); }, a, b);
  expect_mismatch([](auto& group, auto tensor) { all_gather_uneven(tensor, group); }, a, b);
  expect_mismatch([](auto& group, auto tensor) { reduce_scatter(tensor, group); }, a, b);
  expect_mismatch([](auto& group, auto tensor) { broadcast(tensor, group); },
                  at::ones({4}, at::kFloat8_e5m2), at::ones({4}, at::kFloat8_e4m3fn));
  expect_mismatch(
      [](auto& group, auto tensor) {
        all_reduce(tensor, group, ReduceOp::sum, {.label = group.rank() == 0 ? "a" : "b"});
      },
      a, a);

  std::string text;
  const auto body = [&](ProcessGroup& group) { all_reduce(group.rank() == 0 ? a : b, group); };
  EXPECT_EQ(fault_of([&] { run_in_process(2, body); }, &text), Fault::mismatch);
  EXPECT_NE(text.find("label 'Float 4 6'"), text.npos) << text;
}

const Ranks refused("refused tensors", [](const Rank&) {
  ProcessGroup group = init_process_group();
  const at::Tensor one = at::ones({2});
  const auto expect = [](Fault fault, auto call) { EXPECT_EQ(fault_of(call), fault); };
  expect(Fault::misuse, [&] { all_reduce(at::Tensor(), group); });
  expect(Fault::unsupported, [&] { all_reduce(at::ones({2}, at::kFloat8_e5m2), group); });
  expect(Fault::unsupported,
         [&] { all_reduce(at::ones({2}, at::kBool), group, ReduceOp::average); });
  expect(Fault::unsupported,
         [&] { all_reduce(at::ones({2}, at::kComplexFloat), group, ReduceOp::product); });
  expect(Fault::unsupported, [&] { all_reduce(one, group, ReduceOp::bor); });
  expect(Fault::unsupported, [&] { all_reduce(at::ones({2}).to_sparse(), group); });
  expect(Fault::misuse, [&] { all_gather_async(one, one, group); });
  expect(Fault::misuse, [&] { reduce_scatter(at::ones({3}), group); });
  expect(Fault::misuse, [&] { reduce_scatter(at::ones({}), group); });
  expect(Fault::misuse, [&] { reduce_scatter(at::ones({3}), group, ReduceOp::sum, {1, 1}); });
  expect(Fault::misuse, [&] { reduce_scatter(at::ones({3}), group, ReduceOp::sum, {4, -1}); });
  expect(Fault::misuse, [&] { reduce_scatter(at::ones({3}), group, ReduceOp::sum, {3}); });
  expect(Fault::misuse, [&] { all_to_all(at::ones({3}), group); });
  expect(Fault::misuse, [&] { all_to_all(at::ones({3}), group, {1, 1}, {1, 1}); });
  expect(Fault::misuse, [&] { all_to_all(one, group, {1, 1}); });
  expect(Fault::misuse, [&] { all_to_all_async(one, one, group, {1, 1}); });
  expect(Fault::misuse, [&] { scatter(one, one, group, group.rank()); });
  expect(Fault::misuse, [&] { broadcast(one, group, 2); });
  std::string text;
  const at::Tensor overlapping = at::ones({1}).expand({2});
  EXPECT_EQ(fault_of([&] { all_reduce(overlapping, group); }, &text), Fault::misuse);
  EXPECT_NE(text.find("expand"), std::string::npos) << text;
  expect(Fault::misuse, [&] { recv(overlapping, group); });
  EXPECT_TRUE(same(all_gather(overlapping, group)[0], at::ones({2})));  // Reading it is allowed.
  all_reduce(one, group);
  destroy_process_group(group);
});

TEST(TensorCollectives, RejectInvalidCallsBeforeSending) {
  EXPECT_TRUE(all_succeeded(refused.run(2)));
}

const Ranks as_processes("tensors of processes", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  for (const auto type : {at::kFloat, at::kBFloat16, at::kByte, at::kComplexDouble}) {
    at::Tensor whole = mine(rank.rank, type);
    all_reduce(whole, group);
    EXPECT_TRUE(same(whole, sum(group.size(), type)));
    const auto all = all_gather_uneven(values({rank.rank, 2}, rank.rank, type), group);
    for (int r = 0; r < group.size(); ++r)
      EXPECT_TRUE(same(all[static_cast<std::size_t>(r)], values({r, 2}, r, type)));
  }
  destroy_process_group(group);
});

TEST(TensorCollectives, WorkBetweenProcesses) {
  for (const int ranks : {1, 2, 3}) EXPECT_TRUE(all_succeeded(as_processes.run(ranks)));
}

}  // namespace
}  // namespace lockstep::tensor::collectives_test
