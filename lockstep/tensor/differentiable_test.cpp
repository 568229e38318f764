// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/differentiable.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/tensor/collectives.h"
#include "tests/fault_of.h"

namespace lockstep::tensor::differentiable_test {
namespace {

using test::fault_of;
using Tensors = std::vector<at::Tensor>;

// --- Equality with one process -------------------------------------------------------------------

struct Case {
  std::string name;
  bool equal_inputs;   // All ranks have the same x,
  bool equal_results;  // or compute the same loss, which counts once.
  std::function<at::Tensor(const at::Tensor&, const ProcessGroup&)> call;
  std::function<Tensors(const Tensors&)> serial;
};

at::Tensor input(at::IntArrayRef sizes, int rank) {
  const at::Tensor x = at::arange(at::empty(sizes).numel(), at::kDouble).view(sizes);
  return (x * 0.37 + rank * 1.7).sin();
}

at::Tensor loss_of(const at::Tensor& y, int rank) {
  const at::Tensor weight = at::arange(1, y.numel() + 1, at::kDouble).view(y.sizes());
  return ((y + 0.3 * rank).sin() * weight.cos()).sum() + y.pow(3).sum();
}

at::Tensor sum(const Tensors& tensors) {
  at::Tensor total = tensors[0];
  for (std::size_t i = 1; i < tensors.size(); ++i) total = total + tensors[i];
  return total;
}

Tensors parts_of(const at::Tensor& x, std::int64_t dim, std::size_t ranks) {
  return x.split_with_sizes(chunk_sizes(x.size(dim), static_cast<int>(ranks)), dim);
}

struct Outcome {
  Tensors results, gradients, second;
};

Outcome in_one_process(const Case& one, const Tensors& inputs) {
  Tensors leaves, x;
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    if (rank == 0 || !one.equal_inputs)
      leaves.push_back(inputs[rank].clone().set_requires_grad(true));
    x.push_back(leaves.back());
  }
  Outcome outcome{.results = one.serial(x), .gradients = {}, .second = {}};
  Tensors losses;
  for (std::size_t rank = 0; rank < inputs.size(); ++rank)
    if (rank == 0 || !one.equal_results)
      losses.push_back(loss_of(outcome.results[rank], static_cast<int>(rank)));
  outcome.gradients = torch::autograd::grad({sum(losses)}, leaves, {}, true, true);
  Tensors squares;
  for (const at::Tensor& gradient : outcome.gradients) squares.push_back(gradient.pow(2).sum());
  outcome.second = torch::autograd::grad({sum(squares)}, leaves);
  return outcome;
}

void expect_near(const at::Tensor& ours, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(ours.sizes(), expected.sizes()) << what;
  ASSERT_EQ(ours.scalar_type(), expected.scalar_type()) << what;
  if (ours.numel() == 0) return;
  EXPECT_LE((ours - expected).abs().max().item<double>(), 1e-11) << what;
}

void expect_equal_to_one_process(const Case& one, const std::function<at::Tensor(int)>& make,
                                 int ranks) {
  Tensors inputs;
  for (int rank = 0; rank < ranks; ++rank) inputs.push_back(make(one.equal_inputs ? 0 : rank));
  const Outcome expected = in_one_process(one, inputs);
  run_in_process(ranks, [&](ProcessGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const std::size_t leaf = one.equal_inputs ? 0 : rank;
    const std::string what =
        one.name + " on rank " + std::to_string(rank) + " of " + std::to_string(ranks) + ": ";
    const at::Tensor x = inputs[rank].clone().set_requires_grad(true);
    const at::Tensor y = one.call(x, group);
    expect_near(y.detach(), expected.results[rank].detach(), what + "result");
    const at::Tensor loss = loss_of(y, one.equal_results ? 0 : group.rank());
    const at::Tensor gradient = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
    expect_near(gradient.detach(), expected.gradients[leaf].detach(), what + "gradient");
    const at::Tensor second = torch::autograd::grad({gradient.pow(2).sum()}, {x})[0];
    expect_near(second, expected.second[leaf], what + "second gradient");
    loss_of(one.call(x, group), one.equal_results ? 0 : group.rank()).backward();
    expect_near(x.grad(), expected.gradients[leaf].detach(), what + "gradient by backward()");

    const at::NoGradGuard no_grad;
    const at::Tensor plain = one.call(x, group);
    EXPECT_EQ(plain.grad_fn(), nullptr) << what;
    expect_near(plain, expected.results[rank].detach(), what + "without a gradient");
  });
}

Case copies() {
  return {"copy", true, false,
          [](const at::Tensor& x, const ProcessGroup& g) { return copy_to_parallel_region(x, g); },
          [](const Tensors& x) { return x; }};
}

Case reduces() {
  return {
      "reduce", false, true,
      [](const at::Tensor& x, const ProcessGroup& g) { return reduce_from_parallel_region(x, g); },
      [](const Tensors& x) { return Tensors(x.size(), sum(x)); }};
}

Case scatters(std::int64_t dim) {
  return {"scatter along " + std::to_string(dim), true, false,
          [=](const at::Tensor& x, const ProcessGroup& g) {
            return scatter_to_parallel_region(x, g, dim);
          },
          [=](const Tensors& x) { return parts_of(x[0], dim, x.size()); }};
}

Case gathers(std::int64_t dim) {
  return {"gather along " + std::to_string(dim), false, true,
          [=](const at::Tensor& x, const ProcessGroup& g) {
            return gather_from_parallel_region(x, g, dim);
          },
          [=](const Tensors& x) { return Tensors(x.size(), at::cat(x, dim)); }};
}

Case gathers_sequence(std::int64_t dim) {
  return {"sequence gather along " + std::to_string(dim), false, false,
          [=](const at::Tensor& x, const ProcessGroup& g) {
            return gather_from_sequence_region(x, g, dim);
          },
          [=](const Tensors& x) { return Tensors(x.size(), at::cat(x, dim)); }};
}

Case reduce_scatters(std::int64_t dim) {
  return {"reduce_scatter along " + std::to_string(dim), false, false,
          [=](const at::Tensor& x, const ProcessGroup& g) {
            return reduce_scatter_to_sequence_region(x, g, dim);
          },
          [=](const Tensors& x) { return parts_of(sum(x), dim, x.size()); }};
}

Case exchanges(std::int64_t split, std::int64_t joined) {
  return {"all_to_all from " + std::to_string(split) + " to " + std::to_string(joined), false,
          false,
          [=](const at::Tensor& x, const ProcessGroup& g) {
            return all_to_all_in_region(x, g, split, joined);
          },
          [=](const Tensors& x) {
            Tensors results;
            for (std::size_t rank = 0; rank < x.size(); ++rank) {
              Tensors received;
              for (const at::Tensor& one : x)
                received.push_back(parts_of(one, split, x.size())[rank]);
              results.push_back(at::cat(received, joined));
            }
            return results;
          }};
}

// Rank `from` has from + to rows for rank `to`, but none if that is three.
std::int64_t rows_between(std::size_t from, std::size_t to) {
  return from + to == 3 ? 0 : static_cast<std::int64_t>(from + to);
}

std::vector<std::int64_t> rows_from(std::size_t rank, std::size_t ranks) {
  std::vector<std::int64_t> rows;
  for (std::size_t to = 0; to < ranks; ++to) rows.push_back(rows_between(rank, to));
  return rows;
}

Case exchanges_rows() {
  return {"all_to_all of rows", false, false,
          [](const at::Tensor& x, const ProcessGroup& g) {
            const auto rank = static_cast<std::size_t>(g.rank());
            const auto rows = rows_from(rank, static_cast<std::size_t>(g.size()));
            return all_to_all_rows_in_region(x, g, rows, rows);
          },
          [](const Tensors& x) {
            Tensors results;
            for (std::size_t rank = 0; rank < x.size(); ++rank) {
              Tensors received;
              for (std::size_t from = 0; from < x.size(); ++from)
                received.push_back(x[from].split_with_sizes(rows_from(from, x.size()))[rank]);
              results.push_back(at::cat(received));
            }
            return results;
          }};
}

constexpr int rank_counts[] = {1, 2, 3, 4};

TEST(Differentiable, CallsOnWholeTensorsEqualOneProcess) {
  const std::vector<std::int64_t> shapes[] = {{4, 6}, {5, 7, 3}, {2, 1, 4}, {3, 2}, {0, 2}};
  for (const int ranks : rank_counts)
    for (const auto& shape : shapes) {
      const auto make = [&](int rank) { return input(shape, rank); };
      expect_equal_to_one_process(copies(), make, ranks);
      expect_equal_to_one_process(reduces(), make, ranks);
      const auto dims = static_cast<std::int64_t>(shape.size());
      for (std::int64_t dim = -1; dim < dims; ++dim) {
        expect_equal_to_one_process(scatters(dim), make, ranks);
        expect_equal_to_one_process(reduce_scatters(dim), make, ranks);
      }
    }
}

TEST(Differentiable, GathersOfUnevenAndEmptyPartsEqualOneProcess) {
  for (const int ranks : rank_counts)
    for (const std::int64_t size : {8, 7, 3, 1})
      for (std::int64_t dim = -1; dim < 3; ++dim) {
        const auto make = [&](int rank) {
          std::vector<std::int64_t> shape{2, 3, 2};
          const auto at = static_cast<std::size_t>(dim < 0 ? dim + 3 : dim);
          shape[at] = chunk_sizes(size, ranks)[static_cast<std::size_t>(rank)];
          return input(shape, rank);
        };
        expect_equal_to_one_process(gathers(dim), make, ranks);
        expect_equal_to_one_process(gathers_sequence(dim), make, ranks);
      }
}

TEST(Differentiable, GathersOfAnySizesEqualOneProcess) {
  const auto make = [](int rank) { return input({2, (rank + 1) % 3 * 2}, rank); };
  for (const int ranks : rank_counts) {
    expect_equal_to_one_process(gathers(1), make, ranks);
    expect_equal_to_one_process(gathers_sequence(-1), make, ranks);
  }
}

TEST(Differentiable, AllToAllEqualsOneProcess) {
  for (const int ranks : rank_counts)
    for (const std::int64_t split : {0, 1, -1})
      for (const std::int64_t joined : {0, 1, 2}) {
        const auto make = [&](int rank) {
          std::vector<std::int64_t> shape{4, 5, 3};  // Cut and joined unevenly.
          if (joined != (split < 0 ? split + 3 : split))
            shape[static_cast<std::size_t>(joined)] = 1 + rank % 3;
          return input(shape, rank);
        };
        expect_equal_to_one_process(exchanges(split, joined), make, ranks);
      }
  const auto rows = [](int rank) { return input({rank * 3, 2}, rank); };
  for (const int ranks : rank_counts) expect_equal_to_one_process(exchanges(0, 0), rows, ranks);
}

TEST(Differentiable, AllToAllOfRowsEqualsOneProcess) {
  for (const int ranks : rank_counts) {
    const auto make = [&](int rank) {
      std::int64_t rows = 0;
      for (const std::int64_t some :
           rows_from(static_cast<std::size_t>(rank), static_cast<std::size_t>(ranks)))
        rows += some;
      return input({rows, 2}, rank);
    };
    expect_equal_to_one_process(exchanges_rows(), make, ranks);
  }
}

// --- Against finite differences ------------------------------------------------------------------

// By central differences.
void expect_numeric(const Case& one, int ranks) {
  run_in_process(ranks, [&](ProcessGroup& group) {
    const int counted =
        one.equal_results ? group.size() : 1;  // How often the sum contains the loss.
    const auto total = [&](const at::Tensor& x) {
      const at::NoGradGuard no_grad;
      at::Tensor loss = loss_of(one.call(x, group), one.equal_results ? 0 : group.rank());
      all_reduce(loss, group);
      return loss.item<double>() / counted;
    };
    const at::Tensor x = input({3, 2}, one.equal_inputs ? 0 : group.rank());
    const at::Tensor leaf = x.clone().set_requires_grad(true);
    loss_of(one.call(leaf, group), one.equal_results ? 0 : group.rank()).backward();
    constexpr double step = 1e-5;
    for (int owner = 0; owner < (one.equal_inputs ? 1 : group.size()); ++owner)
      for (std::int64_t i = 0; i < x.numel(); ++i) {
        const bool moves = one.equal_inputs || owner == group.rank();
        at::Tensor up = x.clone(), down = x.clone();
        if (moves) up.view(-1)[i] += step;
        if (moves) down.view(-1)[i] -= step;
        const double slope = (total(up) - total(down)) / (2 * step);
        if (moves) {
          EXPECT_NEAR(leaf.grad().reshape(-1)[i].item<double>(), slope, 1e-7) << one.name;
        }
      }
  });
}

TEST(Differentiable, GradientsAreSlopes) {
  const Case all[] = {copies(),       reduces(),           scatters(1),
                      gathers(1),     gathers_sequence(0), reduce_scatters(0),
                      exchanges(0, 1)};
  for (const Case& one : all)
    for (const int ranks : {2, 3}) expect_numeric(one, ranks);
}

// --- Types, memory, autograd ---------------------------------------------------------------------

TEST(Differentiable, EveryFloatingTypeKeepsItsTypeAndIntegersAreMoved) {
  run_in_process(3, [](ProcessGroup& group) {
    for (const auto type : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
      const at::Tensor x = at::ones({2, 4}, type).set_requires_grad(true);
      const at::Tensor y = reduce_from_parallel_region(copy_to_parallel_region(x, group), group);
      EXPECT_EQ(y.scalar_type(), type);
      y.sum().backward();
      EXPECT_TRUE(at::equal(y.detach(), at::ones({2, 4}, type) * 3));
      EXPECT_TRUE(at::equal(x.grad(), at::ones({2, 4}, type) * 3));
      const at::Tensor z = at::ones({1, 2}, type).mul(group.rank() + 1).set_requires_grad(true);
      gather_from_sequence_region(z, group, 1).sum().backward();
      EXPECT_TRUE(at::equal(z.grad(), at::ones({1, 2}, type) * 3));
    }
    const at::Tensor numbers = at::arange(2) + group.rank() * 2;
    EXPECT_TRUE(at::equal(gather_from_parallel_region(numbers, group, 0), at::arange(6)));
    EXPECT_TRUE(at::equal(scatter_to_parallel_region(at::arange(6), group, 0), numbers));
  });
}

TEST(Differentiable, InAGroupOfOneAllAreTheIdentityWithoutACopy) {
  run_in_process(1, [](ProcessGroup& group) {
    const at::Tensor x = at::ones({2, 3}).set_requires_grad(true);
    EXPECT_TRUE(copy_to_parallel_region(x, group).is_same(x));
    EXPECT_TRUE(reduce_from_parallel_region(x, group).is_same(x));
    EXPECT_TRUE(scatter_to_parallel_region(x, group, 1).is_same(x));
    EXPECT_TRUE(gather_from_parallel_region(x, group, 1).is_same(x));
    EXPECT_TRUE(gather_from_sequence_region(x, group, -2).is_same(x));
    EXPECT_TRUE(reduce_scatter_to_sequence_region(x, group, 0).is_same(x));
    EXPECT_TRUE(all_to_all_in_region(x, group, 0, 1).is_same(x));
  });
}

TEST(Differentiable, InputsAndGradientsStayAsTheyWereAlsoWhenTheyAreNotContiguous) {
  run_in_process(2, [](ProcessGroup& group) {
    const at::Tensor x = input({4, 6}, group.rank()).t();
    const at::Tensor before = x.clone();
    reduce_from_parallel_region(x, group);
    EXPECT_TRUE(at::equal(x, before));
    EXPECT_TRUE(gather_from_parallel_region(x, group, 1).is_contiguous());

    const at::Tensor leaf = at::ones({2, 2}).set_requires_grad(true);
    const at::Tensor gradient = at::ones({2, 2});
    copy_to_parallel_region(leaf, group).backward(gradient);
    EXPECT_TRUE(at::equal(gradient, at::ones({2, 2})));
    EXPECT_TRUE(at::equal(leaf.grad(), at::ones({2, 2}) * 2));
  });
}

TEST(Differentiable, NothingIsRecordedForInputsWithoutAGradient) {
  run_in_process(2, [](ProcessGroup& group) {
    const at::Tensor x = at::ones({2, 2});
    EXPECT_FALSE(reduce_from_parallel_region(x, group).requires_grad());
    EXPECT_TRUE(copy_to_parallel_region(x, group).is_same(x));
  });
}

// --- Errors --------------------------------------------------------------------------------------

TEST(Differentiable, ChunkSizesAreThoseOfTorchChunk) {
  for (std::int64_t size = 0; size < 30; ++size)
    for (int parts = 1; parts < 8; ++parts) {
      std::vector<std::int64_t> expected;
      for (const at::Tensor& chunk : at::zeros({size}).chunk(parts))
        expected.push_back(chunk.numel());
      expected.resize(static_cast<std::size_t>(parts), 0);
      EXPECT_EQ(chunk_sizes(size, parts), expected) << size << " in " << parts;
    }
  EXPECT_EQ(fault_of([] { chunk_sizes(-1, 2); }), Fault::misuse);
  EXPECT_EQ(fault_of([] { chunk_sizes(1, 0); }), Fault::misuse);
}

TEST(Differentiable, DimsThatDoNotExistAreRefusedByNameInAGroupOfOneToo) {
  run_in_process(1, [](ProcessGroup& group) {
    const at::Tensor x = at::ones({2, 3});
    std::string text;
    const CallOptions named{.label = "h.0.mlp"};
    EXPECT_EQ(fault_of([&] { gather_from_parallel_region(x, group, 2, named); }, &text),
              Fault::misuse);
    EXPECT_NE(text.find("h.0.mlp (gather_from_parallel_region): there is no dim 2 of a tensor of "
                        "2 dims"),
              text.npos)
        << text;
    EXPECT_EQ(fault_of([&] { scatter_to_parallel_region(x, group, -3); }), Fault::misuse);
    EXPECT_EQ(fault_of([&] { all_to_all_in_region(x, group, 0, 5); }), Fault::misuse);
    EXPECT_EQ(fault_of(
                  [&] {
                    all_to_all_rows_in_region(x, group, {2, 3}, {3, 3});
                  },
                  &text),
              Fault::misuse);
    EXPECT_NE(text.find("2 and 2 numbers of rows, of 5 to send, for 1 ranks and 2 rows"), text.npos)
        << text;
    EXPECT_EQ(fault_of([&] { reduce_scatter_to_sequence_region(at::ones({}), group, 0); }),
              Fault::misuse);
    EXPECT_EQ(fault_of([&] { copy_to_parallel_region({}, group); }), Fault::misuse);
  });
}

TEST(Differentiable, ShapesThatDifferBetweenRanksAreAMismatchThatNamesTheCall) {
  const auto expect = [](const auto& call, const std::string& name) {
    std::string text;
    const auto body = [&](ProcessGroup& group) { call(group); };
    EXPECT_EQ(fault_of([&] { run_in_process(2, body); }, &text), Fault::mismatch) << name;
    EXPECT_NE(text.find("in " + name), text.npos) << text;
  };
  const CallOptions named{.label = "fc"};
  expect(
      [&](const ProcessGroup& g) {
        reduce_from_parallel_region(at::ones({2 + g.rank(), 2}), g, named);
      },
      "fc (reduce_from_parallel_region)");
  expect(
      [&](const ProcessGroup& g) {
        gather_from_parallel_region(at::ones({2, 2 + g.rank()}), g, 0, named);
      },
      "fc (gather_from_parallel_region)");
  expect(
      [&](const ProcessGroup& g) {
        reduce_scatter_to_sequence_region(at::ones({4, 2 + g.rank()}), g, 1, named);
      },
      "fc (reduce_scatter_to_sequence_region)");
  expect(
      [&](const ProcessGroup& g) {
        const at::Tensor x = at::ones({2, 2 + g.rank()}).set_requires_grad(true);
        copy_to_parallel_region(x, g, named).sum().backward();
      },
      "fc (copy_to_parallel_region) backward");
  expect(
      [&](const ProcessGroup& g) {
        const at::Tensor x = at::ones({2, 2}).set_requires_grad(true);
        copy_to_parallel_region(x, g, {.label = g.rank() == 0 ? "fc" : "other"}).sum().backward();
      },
      "");
}

TEST(Differentiable, AllToAllRefusesUnequalSizesOfTheDimThatIsSplitOnAllRanks) {
  run_in_process(3, [](ProcessGroup& group) {
    std::string text;
    const at::Tensor x = at::ones({group.rank() == 1 ? 5 : 4, 2});
    EXPECT_EQ(fault_of([&] { all_to_all_in_region(x, group, 0, 1); }, &text), Fault::mismatch);
    EXPECT_NE(text.find("rank 0 has 4 elements, rank 1 has 5"), text.npos) << text;
    group.barrier();
  });
}

TEST(Differentiable, ARankThatDoesNotComeToBackwardIsNamedWithTheCall) {
  std::promise<void> ended;
  const auto body = [&](ProcessGroup& group) {
    const at::Tensor x = at::ones({2}).set_requires_grad(true);
    const CallOptions options{.timeout = std::chrono::milliseconds(200), .label = "fc"};
    const at::Tensor y = copy_to_parallel_region(x, group, options);
    if (group.rank() == 1) return ended.get_future().wait();
    std::string text;
    EXPECT_EQ(fault_of([&] { y.sum().backward(); }, &text), Fault::timeout);
    ended.set_value();
    EXPECT_NE(text.find("in fc (copy_to_parallel_region) backward"), text.npos) << text;
    EXPECT_NE(text.find("rank 1"), text.npos) << text;
  };
  EXPECT_EQ(fault_of([&] { run_in_process(2, body); }), Fault::timeout);
}

}  // namespace
}  // namespace lockstep::tensor::differentiable_test
