// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/sparse_sum.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <regex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/tensor/collectives.h"
#include "tests/fault_of.h"

namespace lockstep::parallel::sparse_sum_test {
namespace {

torch::Tensor numbers(torch::IntArrayRef sizes, int seed, torch::ScalarType type = torch::kFloat) {
  const auto tensor = torch::sin(torch::arange(torch::empty(sizes).numel()) * 0.7 + seed);
  return tensor.view(sizes).to(type);
}

torch::Tensor only(const torch::Tensor& tensor, const std::vector<std::int64_t>& rows) {
  torch::Tensor result = torch::zeros_like(tensor);
  for (const std::int64_t row : rows) result[row].copy_(tensor[row]);
  return result;
}

torch::Tensor filled(const torch::Tensor& tensor, std::int64_t row, double value) {
  torch::Tensor result = tensor.clone();
  result[row].fill_(value);
  return result;
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
}

// In types of two bytes, rounding determines which NaN a sum is.
torch::Tensor with_one_nan(const torch::Tensor& tensor) {
  if (tensor.element_size() > 2) return tensor;
  return tensor.masked_fill(tensor.isnan(), std::numeric_limits<double>::quiet_NaN());
}

torch::Tensor added_up(const torch::Tensor& part, const ProcessGroup& group) {
  SparseSum sum(group);
  sum.begin();
  torch::Tensor tensor = part.clone();
  sum.send(tensor);
  sum.finish();
  return tensor;
}

struct Sends {
  std::int64_t bytes = 0;
  int under_way = 0;
};

Sends sends_of(const ProcessGroup& group) {
  const std::string record = group.flight_record();
  const std::regex send("\"operation\":\"send\"[^}]*\"bytes\":([0-9]+)[^}]*\"phase\":\"([a-z]+)\"");
  Sends sends;
  for (std::sregex_iterator it(record.begin(), record.end(), send), end; it != end; ++it) {
    sends.bytes += std::stoll((*it)[1]);
    if ((*it)[2] == "entered") ++sends.under_way;
  }
  return sends;
}

TEST(SparseSum, MatchesTheBitsOfAllReduceForTwoRanks) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf})
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{
             {}, {1}, {37}, {0, 5}, {5, 0}, {12, 7}, {9, 3, 2}, {700, 1000}}) {
      const torch::Tensor a = numbers(sizes, 1, type), b = numbers(sizes, 2, type);
      std::vector<std::pair<torch::Tensor, torch::Tensor>> cases{
          {a, b}, {torch::zeros_like(a), b}, {a, torch::zeros_like(b)}, {a * 0, b * 0}};
      if (sizes.size() > 1 && a.numel() > 0) {
        const std::int64_t last = sizes[0] - 1;
        cases.insert(cases.end(),
                     {{only(a, {2, last}), b},
                      {a, only(b, {1})},
                      {only(a, {0, 2, 5}), only(b, {2, 3})},
                      {only(a, {1}), filled(b, 3, -0.0)},  // Added to a row that is not sent.
                      {only(filled(a, 3, -0.0), {1, 3}), filled(b, 3, -0.0)},  // To another -0.0.
                      {only(filled(a, 2, nan), {2}), b},
                      {filled(a, 2, nan), filled(only(b, {1}), 3, nan)},
                      {filled(a, 2, std::numeric_limits<double>::infinity()), only(b, {2})}});
      }
      run_in_process(2, [&](ProcessGroup& world) {
        for (std::size_t i = 0; i < cases.size(); ++i) {
          const torch::Tensor& mine = world.rank() == 0 ? cases[i].first : cases[i].second;
          torch::Tensor expected = mine.clone();
          all_reduce(expected, world);
          EXPECT_TRUE(same_bits(with_one_nan(added_up(mine, world)), with_one_nan(expected)))
              << "case " << i << " of " << type << ' ' << torch::IntArrayRef(sizes);
        }
      });
    }
}

// NaNs with different bits, which a sum could take from either side.
TEST(SparseSum, IsTheSameOnAllRanksForEveryNaN) {
  std::vector<torch::Tensor> results(2);
  run_in_process(2, [&](ProcessGroup& world) {
    torch::Tensor mine = numbers({50, 19}, world.rank());
    if (world.rank() == 1) mine = only(mine, {4, 7});
    torch::Tensor bits = mine.view(torch::kInt);
    for (const std::int64_t row : {4, 7}) bits[row].fill_(0x7fc00001 + world.rank());
    results.at(static_cast<std::size_t>(world.rank())) = added_up(mine, world);
  });
  EXPECT_TRUE(same_bits(results[0], results[1]));
  EXPECT_TRUE(results[0][4].isnan().all().item<bool>());
}

TEST(SparseSum, AddsMoreRanksInOrderAndRoundsOnce) {
  for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    const std::vector<torch::Tensor> parts{
        only(numbers({40, 9}, 1, type), {3, 8}), numbers({40, 9}, 2, type),
        only(numbers({40, 9}, 3, type), {8, 11, 12}), torch::zeros({40, 9}, type)};
    torch::Tensor expected = parts[0].to(torch::kFloat, false, /*copy=*/true);
    for (std::size_t i = 1; i < parts.size(); ++i) expected.add_(parts[i].to(torch::kFloat));
    run_in_process(4, [&](ProcessGroup& world) {
      const torch::Tensor& mine = parts[static_cast<std::size_t>(world.rank())];
      EXPECT_TRUE(same_bits(added_up(mine, world), expected.to(type)));
      EXPECT_TRUE(same_bits(added_up(mine, world), expected.to(type)));  // And again.
    });
  }
}

TEST(SparseSum, SendsNoRowThatIsZero) {
  run_in_process(2, [](ProcessGroup& world) {
    const auto sent_for = [&](const torch::Tensor& part) {
      const std::int64_t before = sends_of(world).bytes;
      added_up(part, world);
      return sends_of(world).bytes - before;
    };
    constexpr std::int64_t rows = 8192, row_bytes = 512, blocks = 4;
    const torch::Tensor dense = numbers({rows, row_bytes / 4}, 1);
    // All, or these rows and their numbers.
    constexpr std::int64_t all = blocks * 8 + rows * row_bytes;
    constexpr std::int64_t three = blocks * 8 + 3 * (8 + row_bytes);
    EXPECT_EQ(sent_for(world.rank() == 0 ? only(dense, {5, 4000, 8191}) : dense),
              world.rank() == 0 ? three : all);
    EXPECT_EQ(sent_for(only(dense, {5, 4000, 8191})), three);
    EXPECT_EQ(sent_for(torch::zeros_like(dense)), blocks * 8);
    // Numbers of almost all rows would cost more than the missing rows.
    EXPECT_EQ(sent_for(filled(dense, 7, 0)), all);
  });
}

TEST(SparseSum, ArrivesWhileTheReceiverIsBusy) {
  std::atomic<bool> has_come = false;
  run_in_process(2, [&](ProcessGroup& world) {
    const torch::Tensor mine = numbers({1024, 2048}, world.rank());
    torch::Tensor tensor = mine.clone();
    SparseSum sum(world);
    sum.begin();
    const Deadline deadline = in(std::chrono::seconds(30));
    if (world.rank() == 0) {  // Computes.
      while (!has_come && Clock::now() < deadline) std::this_thread::yield();
      EXPECT_TRUE(has_come);
    }
    sum.send(tensor);
    if (world.rank() == 1) {
      while (sends_of(world).under_way > 0 && Clock::now() < deadline) std::this_thread::yield();
      has_come = true;
    }
    sum.finish();
    EXPECT_TRUE(same_bits(tensor, numbers({1024, 2048}, 0) + numbers({1024, 2048}, 1)));
  });
}

// Rank 0 sends one row of a tensor that has twelve, by messages with the tags of a sum.
TEST(SparseSum, NamesTheRankWhoseRowsABlockDoesNotHave) {
  struct Wrong {
    std::int64_t count, row;
    std::string text;
  };
  for (const Wrong& wrong :
       {Wrong{13, 0, "more rows than a block has"}, Wrong{-1, 0, "more rows than a block has"},
        Wrong{1, 12, "a row that a block does not have"},
        Wrong{1, -1, "a row that a block does not have"}})
    run_in_process(2, [&](ProcessGroup& world) {
      const ProcessGroup pair = world.split(0);
      if (world.rank() == 0) {
        const std::vector<torch::Tensor> sent{torch::tensor({wrong.count}, torch::kLong),
                                              torch::tensor({wrong.row}, torch::kLong),
                                              torch::ones({1, 7})};
        for (std::size_t tag = 0; tag < sent.size(); ++tag)
          send_async(sent[tag], pair, 1, static_cast<std::int64_t>(tag));
        world.barrier();
      } else {
        std::string text;
        EXPECT_EQ(test::fault_of(
                      [&] {
                        added_up(torch::zeros({12, 7}), pair);
                      },
                      &text),
                  Fault::bug);
        EXPECT_NE(text.find("rank 0 sent " + wrong.text), text.npos) << text;
        world.barrier();
      }
    });
}

}  // namespace
}  // namespace lockstep::parallel::sparse_sum_test
