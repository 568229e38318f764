// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/power_sgd.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/in_process.h"
#include "lockstep/comm/values.h"
#include "lockstep/parallel/gradients/low_rank_bucket.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/cut_tensors.h"
#include "lockstep/tensor/named_tensors.h"
#include "tests/fault_of.h"
#include "tests/saved_state.h"

namespace lockstep::parallel::power_sgd_test {
namespace {

using test::fault_of;
using test::SavedState;
using Ddp = DistributedDataParallel<torch::nn::SequentialImpl>;

// Fixed weights: threads share the generator.
std::shared_ptr<torch::nn::SequentialImpl> net() {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 8, 3));
  conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  auto made = std::make_shared<torch::nn::SequentialImpl>(
      conv, torch::nn::Flatten(), torch::nn::Linear(32, 24), torch::nn::Linear(24, 24));
  const torch::NoGradGuard no_grad;
  for (auto& weights : made->parameters())
    weights.copy_(torch::arange(weights.numel()).view(weights.sizes()).sin().mul(0.3));
  return made;
}

torch::Tensor inputs(int rank, int step) {
  return torch::arange(5 * 3 * 16, torch::kFloat)
      .view({5, 3, 4, 4})
      .mul(0.7 + 0.1 * step)
      .add(rank)
      .sin();
}

void pass(Ddp& ddp, int rank, int step = 0) {
  ddp.module()->zero_grad();
  ddp(inputs(rank, step)).pow(2).mean().backward();
}

// Compresses from the third pass on.
PowerSGDOptions of_rank(std::int64_t rank) {
  return {.matrix_approximation_rank = rank, .start_step = 2, .min_compression_rate = 1};
}

// Compresses all but vectors.
PowerSGDOptions of_full_rank() {
  return {.matrix_approximation_rank = 1000, .start_step = 2, .min_compression_rate = 0.1};
}

void for_both(
    int ranks,
    const std::function<void(ProcessGroup&, const DistributedDataParallelOptions&)>& body) {
  for (const bool overlap : {false, true})
    run_in_process(ranks, [&](ProcessGroup& world) {
      body(world, {.bucket_cap_mb = 0.003, .overlap = overlap});
    });
}

double largest_difference(const Ddp& a, const Ddp& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.module()->parameters().size(); ++i) {
    const torch::Tensor expected = a.module()->parameters()[i].grad();
    const torch::Tensor difference = expected - b.module()->parameters()[i].grad();
    largest = std::max(largest, (difference.abs().max() / expected.abs().max()).item<double>());
  }
  return largest;
}

std::string gradients_of(const Ddp& ddp) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : ddp.module()->parameters())
    gradients.push_back(parameter.grad());
  return sha256(gradients);
}

// --- Arithmetic ---------------------------------------------------------------------------------

TEST(Orthogonalize, MakesRowsOrthonormalByBothMethods) {
  for (const std::int64_t rank : {1, 2, 5}) {
    const auto matrices =
        torch::arange(3 * rank * 40, torch::kFloat).view({3, rank, 40}).pow(2).sin();
    const auto before = matrices.clone();
    orthogonalize(matrices, 0);
    const auto ones = torch::eye(rank).expand({3, rank, rank});
    EXPECT_TRUE(torch::allclose(matrices.bmm(matrices.transpose(1, 2)), ones, 1e-5, 1e-5)) << rank;
    const auto projected = before.bmm(matrices.transpose(1, 2)).bmm(matrices);
    EXPECT_TRUE(torch::allclose(projected, before, 1e-4, 1e-4)) << rank;
  }
}

TEST(Orthogonalize, LeavesRowsThatHaveNothingOfTheirOwnZero) {
  auto matrices = torch::zeros({2, 2, 6});
  matrices[0] = torch::tensor({{1.F}, {3.F}}) * torch::arange(1, 7, torch::kFloat);
  orthogonalize(matrices, 0);
  EXPECT_NEAR(matrices[0][0].norm().item<double>(), 1, 1e-6);
  EXPECT_EQ(matrices[0][1].abs().max().item<double>(), 0);
  EXPECT_EQ(matrices[1].abs().max().item<double>(), 0);
}

TEST(PowerSGD, GivesTheMeanAtFullRank) {
  for (const int ranks : {1, 3})
    for_both(ranks, [](ProcessGroup& world, const DistributedDataParallelOptions& options) {
      Ddp plain(net(), world, options);
      Ddp ddp(net(), world, options);
      PowerSGDOptions full = of_full_rank();
      full.batch_tensors_with_same_shape = *options.overlap;
      const PowerSGD power(world, full);
      ddp.register_comm_hook(power.hook());
      for (int step = 0; step < 5; ++step) {
        pass(plain, world.rank(), step);
        pass(ddp, world.rank(), step);
        EXPECT_LT(largest_difference(plain, ddp), 1e-4) << "step " << step;
      }
    });
}

TEST(PowerSGD, GivesAllRanksTheSameBitsAndIsTheMeanBeforeItsStart) {
  for_both(2, [](ProcessGroup& world, const DistributedDataParallelOptions& options) {
    Ddp plain(net(), world, options);
    Ddp ddp(net(), world, options);
    const PowerSGD power(world, of_rank(2));
    ddp.register_comm_hook(power.hook());
    for (int step = 0; step < 5; ++step) {
      pass(plain, world.rank(), step);
      pass(ddp, world.rank(), step);
      EXPECT_EQ(power.compression_rate() > 1.5, step >= 2);
      EXPECT_EQ(gradients_of(ddp) == gradients_of(plain), step < 2) << "step " << step;
      for (const std::string& other : all_gather_bytes(gradients_of(ddp), world))
        EXPECT_EQ(other, gradients_of(ddp)) << "step " << step;
    }
  });
}

TEST(PowerSGD, MakesUpForItsErrorsByErrorFeedback) {
  for (const bool use_error_feedback : {false, true})
    run_in_process(2, [&](ProcessGroup& world) {
      Ddp plain(net(), world);
      Ddp ddp(net(), world);
      PowerSGDOptions options = of_rank(1);
      options.use_error_feedback = use_error_feedback;
      const PowerSGD power(world, options);
      ddp.register_comm_hook(power.hook());
      pass(plain, world.rank());
      const auto mean = plain.module()->parameters()[2].grad();
      auto sum = torch::zeros_like(mean);
      for (int step = 0; step < 2; ++step) pass(ddp, world.rank());
      constexpr int steps = 40;
      for (int step = 0; step < steps; ++step) {
        pass(ddp, world.rank());
        sum += ddp.module()->parameters()[2].grad();
      }
      const double error = ((sum / steps - mean).norm() / mean.norm()).item<double>();
      if (use_error_feedback)
        EXPECT_LT(error, 0.1);
      else
        EXPECT_GT(error, 0.2);
    });
}

TEST(PowerSGD, ForgetsAPassWithANaN) {
  for_both(2, [](ProcessGroup& world, DistributedDataParallelOptions options) {
    options.non_finite = NonFinite::skip;
    Ddp plain(net(), world, options);
    Ddp ddp(net(), world, options);
    const PowerSGD power(world, of_full_rank());
    ddp.register_comm_hook(power.hook());
    for (int step = 0; step < 4; ++step) pass(ddp, world.rank(), step);
    ddp.module()->zero_grad();
    auto broken = inputs(world.rank(), 0);
    if (world.rank() == 1) broken[0][0][0][0] = std::numeric_limits<float>::quiet_NaN();
    ddp(broken).pow(2).mean().backward();
    EXPECT_FALSE(ddp.module()->parameters()[0].grad().defined());
    for (int step = 4; step < 6; ++step) {
      pass(plain, world.rank(), step);
      pass(ddp, world.rank(), step);
      EXPECT_LT(largest_difference(plain, ddp), 1e-4) << "step " << step;
    }
  });
}

// --- One gradient -------------------------------------------------------------------------------

torch::Tensor averaged(const PowerSGD& power, const torch::Tensor& gradient,
                       const ProcessGroup& world) {
  const torch::Tensor buffer = gradient.flatten().clone();
  GradientBucket bucket{.index = 0,
                        .count = 1,
                        .buffer = buffer,
                        .gradients = {{"weight", buffer.view(gradient.sizes())}},
                        .label = "bucket 0",
                        .group = world};
  power.hook()(bucket);
  return bucket.buffer.view(gradient.sizes());
}

torch::Tensor gradient_of_rank(std::int64_t rank, at::ScalarType type) {
  const auto wave = [](std::int64_t count, double speed) {
    return torch::arange(count, torch::kDouble).mul(speed).add(1).sin();
  };
  auto gradient = torch::zeros({16, 12}, torch::kDouble);
  for (std::int64_t i = 1; i <= rank; ++i) {
    const auto speed = static_cast<double>(i);
    gradient += torch::outer(wave(16, 0.7 * speed), wave(12, 1.1 * speed));
  }
  return gradient.to(type);
}

bool is_close(const torch::Tensor& a, const torch::Tensor& b) {
  const double tolerance = a.scalar_type() == at::kFloat ? 1e-5 : 0.05;
  return torch::allclose(a.to(at::kDouble), b.to(at::kDouble), tolerance, tolerance);
}

const auto types = {at::kFloat, at::kHalf, at::kBFloat16};

// One head is unused in the first compressed pass.
TEST(PowerSGD, SeesAGradientAgainThatWasZeroOrOfALowerRank) {
  run_in_process(2, [](ProcessGroup& world) {
    for (const at::ScalarType type : types)
      for (const std::int64_t rank : {1, 2})
        for (const std::int64_t lower : {std::int64_t{0}, rank - 1}) {
          const PowerSGD power(world, of_rank(rank));
          const auto low = gradient_of_rank(lower, type);
          for (int step = 0; step < 4; ++step) averaged(power, low, world);
          const auto gradient = gradient_of_rank(rank, type);
          torch::Tensor sum = torch::zeros_like(gradient, at::kDouble);
          constexpr int steps = 8;
          for (int step = 0; step < steps; ++step) sum += averaged(power, gradient, world);
          EXPECT_TRUE(is_close(averaged(power, gradient, world), gradient)) << type << rank;
          EXPECT_TRUE(is_close((sum / steps).to(type), gradient)) << type << rank << lower;
        }
  });
}

TEST(PowerSGD, ForgetsAPassWithANumberThatIsNotFinite) {
  run_in_process(2, [](ProcessGroup& world) {
    for (const at::ScalarType type : types)
      for (const std::int64_t rank : {1, 2, 5})
        for (const double broken :
             {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
          const PowerSGD power(world, of_rank(rank));
          const auto gradient = gradient_of_rank(rank, type);
          for (int step = 0; step < 4; ++step) averaged(power, gradient, world);
          auto spoilt = gradient.clone();
          if (world.rank() == 1) spoilt[3][5] = broken;
          EXPECT_FALSE(averaged(power, spoilt, world).isfinite().all().item<bool>());
          for (int step = 0; step < 4; ++step) averaged(power, gradient, world);
          EXPECT_TRUE(is_close(averaged(power, gradient, world), gradient)) << type << rank;
        }
  });
}

// Elements are finite, sums are not.
TEST(PowerSGD, IsNotFiniteAfterAnOverflow) {
  run_in_process(2, [](ProcessGroup& world) {
    for (const std::int64_t rank : {1, 2, 5}) {
      const PowerSGD power(world, of_rank(rank));
      const auto gradient = gradient_of_rank(rank, at::kHalf);
      for (int step = 0; step < 4; ++step) averaged(power, gradient, world);
      const auto large = torch::full_like(gradient, 60000) * gradient.sign();
      EXPECT_FALSE(averaged(power, large, world).isfinite().all().item<bool>()) << rank;
      averaged(power, gradient, world);
      EXPECT_TRUE(is_close(averaged(power, gradient, world), gradient)) << rank;
    }
  });
}

TEST(Orthogonalize, MakesRowsNaNsWhoseLengthOverflows) {
  for (const std::int64_t rank : {1, 2}) {
    const auto matrices = torch::full({1, rank, 6}, 3e38F);
    orthogonalize(matrices, 0);
    EXPECT_TRUE(matrices[0][0].isnan().all().item<bool>());
  }
}

// --- State --------------------------------------------------------------------------------------

struct Training {
  explicit Training(const ProcessGroup& world, double bucket_cap_mb = 0.003,
                    const PowerSGDOptions& options = of_rank(2))
      : rank(world.rank()),
        ddp(net(), world, {.bucket_cap_mb = bucket_cap_mb}),
        sgd(ddp.module()->parameters(), torch::optim::SGDOptions(0.1)),
        power(world, options) {
    ddp.register_comm_hook(power.hook());
  }

  void train(int first, int last) {
    for (int step = first; step < last; ++step) {
      pass(ddp, rank, step);
      sgd.step();
    }
  }

  const int rank;
  Ddp ddp;
  torch::optim::SGD sgd;
  PowerSGD power;
};

void copy_weights(const Training& from, const Training& to) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < from.ddp.module()->parameters().size(); ++i)
    to.ddp.module()->parameters()[i].copy_(from.ddp.module()->parameters()[i]);
}

double largest_difference(const Training& a, const Training& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.ddp.module()->parameters().size(); ++i) {
    const auto difference = a.ddp.module()->parameters()[i] - b.ddp.module()->parameters()[i];
    largest = std::max(largest, difference.abs().max().item<double>());
  }
  return largest;
}

TEST(PowerSGD, ContinuesFromItsState) {
  run_in_process(2, [saved = std::make_shared<SavedState>()](ProcessGroup& world) {
    Training one(world);
    one.train(0, 6);
    saved->add(one.power.state_dict(), world.rank());
    world.barrier();
    Training other(world, /*bucket_cap_mb=*/1);
    Training without_errors(world);
    copy_weights(one, other);
    copy_weights(one, without_errors);
    test::load(other.power, saved->whole());
    one.train(6, 10);
    other.train(6, 10);
    without_errors.train(6, 10);
    EXPECT_LT(largest_difference(one, other), 1e-5);
    EXPECT_GT(largest_difference(one, without_errors), 1e-4);
  });
}

TEST(PowerSGD, KeepsTheMeanOfAllErrorsOnAnotherNumberOfRanks) {
  SavedState saved;
  run_in_process(3, [&](ProcessGroup& world) {
    Training training(world);
    training.train(0, 5);
    saved.add(training.power.state_dict(), world.rank());
  });
  const std::string name = "error.2.weight";
  const auto& tensors = saved.whole().tensors;
  const auto sum = tensors.at("rank.0." + name).data + tensors.at("rank.1." + name).data +
                   tensors.at("rank.2." + name).data;
  EXPECT_GT(sum.abs().max().item<double>(), 0);
  for (const int ranks : {1, 2, 4}) {
    SavedState resumed;
    std::atomic<std::size_t> errors_read = 0;
    run_in_process(ranks, [&](ProcessGroup& world) {
      PowerSGD power(world, of_rank(2));
      for (const auto& [wanted, range] : test::load(power, saved.whole()))
        if (wanted.ends_with(name)) ++errors_read;
      const StateDict now = power.state_dict();
      resumed.add(now, world.rank());
      EXPECT_EQ(now.tensors.count("q.2.weight"), 1U);
    });
    EXPECT_EQ(errors_read.load(), 3U);
    auto now = torch::zeros_like(sum);
    for (const auto& [entry, tensor] : resumed.whole().tensors)
      if (entry.ends_with("." + name)) now += tensor.data;
    // The errors of ranks are much larger than their sum.
    const double rounding = 1e-6 * tensors.at("rank.0." + name).data.abs().max().item<double>();
    EXPECT_TRUE(torch::allclose(now / ranks, sum / 3, 1e-5, rounding)) << ranks << " ranks";
  }
}

// --- Errors -------------------------------------------------------------------------------------

TEST(PowerSGD, RefusesOptionsOutOfRange) {
  run_in_process(1, [](ProcessGroup& world) {
    const auto refused = [&](const PowerSGDOptions& options) {
      EXPECT_EQ(fault_of([&] { PowerSGD power(world, options); }), Fault::misuse);
    };
    refused({.matrix_approximation_rank = 0});
    refused({.start_step = 1});
    refused({.start_step = 1, .use_error_feedback = false});
    refused({.start_step = -1, .use_error_feedback = false, .warm_start = false});
    refused({.min_compression_rate = 0});
    refused({.orthogonalization_epsilon = -1});
    PowerSGD power(world, {.start_step = 0, .use_error_feedback = false, .warm_start = false});
  });
}

// Its tensor-parallel ranks would save different errors under one name.
TEST(PowerSGD, RefusesParametersThatAreCut) {
  run_in_process(1, [](ProcessGroup& world) {
    const PowerSGD power(world, of_rank(1));
    const auto parameter = torch::ones({4, 4});
    note_part(parameter, {.shape = {8, 4},
                          .boxes = {.list = {{.offsets = {0, 0}, .sizes = {4, 4}}}},
                          .group = world});
    const auto buffer = torch::ones({16});
    GradientBucket bucket{.index = 0,
                          .count = 1,
                          .buffer = buffer,
                          .gradients = {{"weight", buffer.view({4, 4})}},
                          .parameters = {parameter},
                          .label = "bucket 0",
                          .group = world};
    EXPECT_EQ(fault_of([&] { power.hook()(bucket); }), Fault::unsupported);
  });
}

TEST(PowerSGD, RefusesRanksThatDisagree) {
  run_in_process(2, [](ProcessGroup& world) {
    std::string text;
    EXPECT_EQ(fault_of(
                  [&] {
                    PowerSGD power(world,
                                   {.random_seed = static_cast<std::uint32_t>(world.rank())});
                  },
                  &text),
              Fault::mismatch);
    EXPECT_NE(text.find("random_seed 0 on rank 0; 1 on rank 1"), text.npos) << text;
  });
}

TEST(PowerSGD, RefusesAStateThatDoesNotFit) {
  SavedState saved;
  run_in_process(1, [&](ProcessGroup& world) {
    Training training(world);
    training.train(0, 3);
    saved.add(training.power.state_dict(), 0);
    PowerSGDOptions without_errors = of_rank(2);
    without_errors.use_error_feedback = false;
    PowerSGDOptions cold = of_rank(2);
    cold.warm_start = false;
    for (const PowerSGDOptions& options : {of_rank(1), without_errors, cold}) {
      PowerSGD power(world, options);
      EXPECT_EQ(fault_of([&] { test::load(power, saved.whole()); }), Fault::misuse);
    }
  });
  const auto refused = [&](const std::string& from, const std::string& to) {
    StateDict changed = saved.whole();
    auto entry = changed.tensors.extract(from);
    entry.key() = to;
    if (from == to) entry.mapped() = whole(torch::zeros({2, 7}));
    changed.tensors.insert(std::move(entry));
    run_in_process(1, [&](ProcessGroup& world) {
      Training training(world);
      test::load(training.power, changed);
      std::string text;
      EXPECT_EQ(fault_of([&] { training.train(0, 1); }, &text), Fault::misuse);
      EXPECT_NE(text.find("gradient "), text.npos) << text;
    });
  };
  refused("q.2.weight", "q.9.weight");
  refused("q.2.weight", "q.2.weight");
}

}  // namespace
}  // namespace lockstep::parallel::power_sgd_test
