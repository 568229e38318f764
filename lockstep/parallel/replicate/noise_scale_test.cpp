// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/replicate/noise_scale.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/in_process.h"
#include "lockstep/parallel/gradients/gradient_noise.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "tests/fault_of.h"

namespace lockstep::parallel::noise_scale_test {
namespace {

using test::fault_of;

constexpr std::int64_t dimensions = 2000;
constexpr double batch_size = 8;
constexpr double gradient_norm = 1.5;
constexpr double deviation = 0.4;  // Of each element of one sample's gradient.
constexpr double noise_scale = dimensions * deviation * deviation / (gradient_norm * gradient_norm);

// The gradient of one sample is a fixed one with Gaussian noise.
struct Quadratic : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& samples) {
    const torch::Tensor gradient = samples.mean(0);
    return (large * gradient.slice(0, 10)).sum() + (small * gradient.slice(0, 0, 10)).sum();
  }

  torch::Tensor large = register_parameter("large", torch::zeros({dimensions - 10}));
  torch::Tensor small = register_parameter("small", torch::zeros({10}));
};

torch::Tensor samples_of(int pass, int rank) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 * pass + rank);
  const torch::Tensor noise =
      torch::randn({static_cast<std::int64_t>(batch_size), dimensions}, generator);
  return noise * deviation + gradient_norm / std::sqrt(static_cast<double>(dimensions));
}

// Means of 150 steps. Estimates of 45 other seeds were within 8 % of the truth.
void expect_known_noise(const ProcessGroup& world, int accumulated,
                        const DistributedDataParallelOptions& options = {}) {
  const auto model = std::make_shared<Quadratic>();
  DistributedDataParallel ddp(model, world, options);
  const NoiseScale noise(ddp, {.batch_size = batch_size, .decay = 0.99});
  EXPECT_EQ(noise.batch_size(), std::nullopt);
  int pass = 0;
  for (int step = 0; step < 150; ++step) {
    model->zero_grad();
    for (int part = 0; part < accumulated; ++part) {
      const auto alone = ddp.no_sync(part + 1 < accumulated);
      ddp(samples_of(pass++, world.rank())).backward();
    }
  }
  ASSERT_TRUE(noise.batch_size().has_value());
  EXPECT_NEAR(*noise.batch_size(), noise_scale, 0.15 * noise_scale);
}

TEST(NoiseScale, IsThatOfGradientsWithKnownNoise) {
  run_in_process(4, [](ProcessGroup& world) { expect_known_noise(world, 1); });
}

TEST(NoiseScale, IsMeasuredBeforeBucketsAreReducedDuringBackward) {
  run_in_process(2, [](ProcessGroup& world) {
    expect_known_noise(world, 1, {.overlap = true, .non_finite = NonFinite::ignore});
  });
}

TEST(NoiseScale, ComparesAccumulatedGradientsOfRanksAndOfOneRank) {
  run_in_process(2, [](ProcessGroup& world) { expect_known_noise(world, 3); });
  run_in_process(1, [](ProcessGroup& world) { expect_known_noise(world, 4); });
}

TEST(NoiseScale, OfOneRankNeedsAccumulation) {
  run_in_process(1, [](ProcessGroup& world) {
    DistributedDataParallel ddp(std::make_shared<Quadratic>(), world);
    const NoiseScale noise(ddp, {.batch_size = batch_size});
    ddp(samples_of(0, 0)).backward();
    std::string text;
    EXPECT_EQ(fault_of([&] { noise.batch_size(); }, &text), Fault::misuse);
    EXPECT_NE(text.find("one rank and no accumulation"), text.npos) << text;
  });
}

TEST(NoiseScale, EndsWithItsObjectAndMayBeMadeAnew) {
  run_in_process(2, [](ProcessGroup& world) {
    const auto model = std::make_shared<Quadratic>();
    DistributedDataParallel ddp(model, world);
    std::optional<NoiseScale> noise(std::in_place, ddp, NoiseScaleOptions{.batch_size = 1});
    EXPECT_EQ(fault_of([&] { NoiseScale(ddp, {.batch_size = 1}); }), Fault::misuse);
    ddp(samples_of(0, world.rank())).backward();
    noise.reset();
    ddp(samples_of(1, world.rank())).backward();
    noise.emplace(ddp, NoiseScaleOptions{.batch_size = 1});
    ddp(samples_of(2, world.rank())).backward();
  });
}

TEST(NoiseScale, OnSomeRanksOnlyIsAnErrorOnAll) {
  run_in_process(2, [](ProcessGroup& world) {
    DistributedDataParallel ddp(std::make_shared<Quadratic>(), world);
    std::optional<NoiseScale> noise;
    if (world.rank() == 1) noise.emplace(ddp, NoiseScaleOptions{.batch_size = 1});
    std::string text;
    EXPECT_EQ(fault_of([&] { ddp(samples_of(0, world.rank())).backward(); }, &text),
              Fault::mismatch);
    EXPECT_NE(text.find("rank 1 has a NoiseScale and rank 0"), text.npos) << text;
  });
}

TEST(NoiseScale, RefusesOptionsAndModesThatItCannotMeasure) {
  run_in_process(1, [](ProcessGroup& world) {
    const auto fault = [&](const NoiseScaleOptions& noise,
                           const DistributedDataParallelOptions& options) {
      DistributedDataParallel ddp(std::make_shared<Quadratic>(), world, options);
      return fault_of([&] { NoiseScale(ddp, noise); });
    };
    EXPECT_EQ(fault({}, {}), Fault::misuse);
    EXPECT_EQ(fault({.batch_size = -1}, {}), Fault::misuse);
    EXPECT_EQ(fault({.batch_size = 1, .decay = 1}, {}), Fault::misuse);
    EXPECT_EQ(fault({.batch_size = 1}, {.static_graph = true}), Fault::unsupported);
    EXPECT_EQ(fault({.batch_size = 1}, {.mean = GradientMean::over_samples}), Fault::unsupported);
    EXPECT_EQ(fault({.batch_size = 1}, {.share_parameters = true}), Fault::unsupported);
  });
}

TEST(NoiseEstimate, IsExactForExactNormsAndEmptyWhereNoiseHidesTheGradient) {
  NoiseEstimate estimate(0.5);
  EXPECT_EQ(estimate.batch_size(), std::nullopt);
  const auto expected = [](double size) { return SquaredNorm{4 + 60 / size, size}; };
  for (int step = 0; step < 3; ++step) estimate.add(expected(8), expected(32));
  EXPECT_NEAR(estimate.batch_size().value(), 15, 1e-9);
  for (int step = 0; step < 9; ++step) estimate.add({60.0 / 8, 8}, {50.0 / 32, 32});
  EXPECT_EQ(estimate.batch_size(), std::nullopt);
}

}  // namespace
}  // namespace lockstep::parallel::noise_scale_test
