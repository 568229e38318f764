// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/pipeline.h"

#include <c10/core/Allocator.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/device_mesh.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/optim/clip_grad_norm.h"
#include "lockstep/optim/mixed_precision.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/tensor/activation_checkpoint.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/across_hosts.h"
#include "tests/rigs/pipeline_layers.h"
#include "tests/rigs/random_pipeline_order.h"

namespace lockstep::pipeline_test {
namespace {

using test::fault_of;
using test::small_layers::Block;
using test::small_layers::blocks;
using test::small_layers::Embed;
using test::small_layers::expect_close;
using test::small_layers::expect_equal;
using test::small_layers::fill;
using test::small_layers::forget_gradients;
using test::small_layers::Gradients;
using test::small_layers::gradients_of;
using test::small_layers::language_model;
using test::small_layers::next_token;
using test::small_layers::rows;
using test::small_layers::tokens;
using test::small_layers::width;

torch::Tensor loss_of(const torch::Tensor& output, const Microbatch& part) {
  return (output - part.of(rows(8, 5))).square().mean();
}

// One process. Adds gradients in the given order of microbatches.
struct Serial {
  Serial(int layers, const std::vector<int>& order) {
    torch::nn::Sequential all;
    for (int i = 0; i < layers; ++i) all->push_back(std::to_string(i), Block(i));
    const int count = static_cast<int>(order.size());
    for (const int i : order) {
      const Microbatch part{i, count};
      const torch::Tensor share = loss_of(all->forward(part.of(rows(8))), part) / count;
      loss += share.item<double>();
      share.backward();
    }
    for (const auto& each : all->named_parameters()) gradients["h." + each.key()] = each->grad();
  }
  explicit Serial(int layers, int microbatches = 4) : Serial(layers, ascending(microbatches)) {}

  static std::vector<int> ascending(int count) {
    std::vector<int> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    return order;
  }

  double loss = 0;
  Gradients gradients;
};

TEST(Pipeline, EveryScheduleHasTheGradientsOfOneProcess) {
  const Serial serial(8), backwards(8, {3, 2, 1, 0});
  for (const PipelineSchedule schedule :
       {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b, PipelineSchedule::interleaved,
        PipelineSchedule::looped_bfs, PipelineSchedule::zero_bubble, PipelineSchedule::zbv})
    for (const int ranks : {1, 2, 4}) {
      SCOPED_TRACE(std::string(name_of(schedule)) + " of " + std::to_string(ranks));
      const Serial& expected = schedule == PipelineSchedule::looped_bfs ? backwards : serial;
      run_in_process(ranks, [&](ProcessGroup& world) {
        Pipeline pipeline(blocks(8), world, {.schedule = schedule, .microbatches = 4});
        for (int step = 0; step < 3; ++step) {  // The first one sends messages, the others slots.
          forget_gradients(pipeline);
          EXPECT_NEAR(pipeline.step(rows(8), loss_of), expected.loss, 1e-7);
          expect_equal(gradients_of(pipeline.named_parameters()), expected.gradients);
        }
        EXPECT_EQ(pipeline.parameters().size(), 2U * 8 / static_cast<std::size_t>(ranks));
      });
    }
}

TEST(Pipeline, RandomOrdersNeverStop) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const PipelineOrder order = test::RandomPipelineOrder(seed).draw();
    SCOPED_TRACE("seed " + std::to_string(seed));
    const int layers = order.stages();
    const Serial serial(layers, order.microbatches);
    run_in_process(order.ranks(), [&](ProcessGroup& world) {
      Pipeline pipeline(blocks(layers), world, {.order = order});
      for (int step = 0; step < 2; ++step) {
        forget_gradients(pipeline);
        EXPECT_NEAR(pipeline.step(rows(8), loss_of), serial.loss, 1e-6);
        expect_close(gradients_of(pipeline.named_parameters()), serial.gradients);
      }
      EXPECT_NEAR(pipeline.evaluate(rows(8), loss_of), serial.loss, 1e-6);
    });
  }
}

// --- Scaled losses -------------------------------------------------------------------------------

// The initial scale is too large. Later, one gradient is infinite in some steps.
constexpr GradScalerOptions from_too_large{
    .init_scale = 0x1p126, .backoff_factor = 0x1p-60, .growth_interval = 3};
constexpr int scaled_steps = 14;

torch::Tensor large_loss_of(const torch::Tensor& output, const Microbatch& part) {
  return 1000 * loss_of(output, part);
}

void overflow(const NamedTensors& parameters, int step) {
  const std::string name = "h." + std::to_string(step % 4) + ".linear.weight";
  for (const auto& [own, parameter] : parameters)
    if (step % 5 == 4 && own == name)
      parameter.grad().view(-1)[0] = std::numeric_limits<float>::infinity();
}

struct Scaled {
  std::vector<double> losses, norms;  // Norms of steps that were made.
  std::vector<bool> made;
  double scale = 0;
  Gradients weights;
};

Scaled train_scaled(GradScaler& scaler, const NamedTensors& parameters,
                    const std::function<double()>& backward, const std::function<double()>& clip) {
  std::vector<torch::Tensor> tensors;
  for (const auto& [name, parameter] : parameters) tensors.push_back(parameter);
  SGD sgd(tensors, torch::optim::SGDOptions(5e-5).momentum(0.9));
  Scaled result;
  for (int step = 0; step < scaled_steps; ++step) {
    sgd.zero_grad();
    result.losses.push_back(backward() / scaler.get_scale());
    overflow(parameters, step);
    if (step % 2 == 1) scaler.unscale_(sgd);
    const double norm = step % 2 == 1 ? clip() : 0;
    result.made.push_back(scaler.step(sgd));
    if (result.made.back()) result.norms.push_back(norm);
    scaler.update();
  }
  result.scale = scaler.get_scale();
  for (const auto& [name, parameter] : parameters) result.weights[name] = parameter.detach();
  return result;
}

Scaled train_scaled_in_one_process() {
  torch::nn::Sequential all;
  NamedTensors parameters;
  for (int i = 0; i < 4; ++i) all->push_back(std::to_string(i), Block(i));
  for (const auto& each : all->named_parameters())
    parameters.emplace_back("h." + each.key(), each.value());
  GradScaler scaler(ProcessGroup::self(), from_too_large);
  const auto backward = [&] {
    double sum = 0;
    for (int i = 0; i < 4; ++i) {
      const Microbatch part{i, 4};
      const torch::Tensor loss = scaler.scale(large_loss_of(all->forward(part.of(rows(8))), part));
      sum += loss.item<double>() / 4;
      (loss / 4).backward();
    }
    return sum;
  };
  // So large a norm does not change the gradients.
  return train_scaled(scaler, parameters, backward,
                      [&] { return clip_grad_norm_(all->parameters(), 1e9).item<double>(); });
}

TEST(Pipeline, AScalerOmitsTheStepsThatItOmitsInOneProcess) {
  const Scaled expected = train_scaled_in_one_process();
  EXPECT_FALSE(expected.made.front());
  EXPECT_EQ(std::ranges::count(expected.made, false), 3);
  const auto expect_the_same = [&](Pipeline& pipeline, const ProcessGroup& world) {
    GradScaler scaler(world, from_too_large);
    const auto backward = [&] {
      return pipeline.step(rows(8), [&](const torch::Tensor& output, const Microbatch& part) {
        return scaler.scale(large_loss_of(output, part));
      });
    };
    const Scaled result = train_scaled(scaler, pipeline.named_parameters(), backward, [&] {
      return pipeline.clip_grad_norm_(1e9).item<double>();
    });
    EXPECT_EQ(result.made, expected.made);
    EXPECT_EQ(result.scale, expected.scale);
    expect_equal(result.weights, expected.weights);
    ASSERT_EQ(result.norms.size(), expected.norms.size());
    for (std::size_t i = 0; i < result.norms.size(); ++i)
      EXPECT_NEAR(result.norms[i], expected.norms[i], 1e-6 * expected.norms[i]);
    for (std::size_t i = 0; i < result.losses.size(); ++i) {
      if (std::isfinite(expected.losses[i])) {
        EXPECT_NEAR(result.losses[i], expected.losses[i], 1e-6 * expected.losses[i]) << i;
      }
    }
  };
  for (const PipelineSchedule schedule :
       {PipelineSchedule::one_f_one_b, PipelineSchedule::zero_bubble})
    for (const int ranks : {1, 2, 4})
      run_in_process(ranks, [&](ProcessGroup& world) {
        Pipeline pipeline(blocks(4), world, {.schedule = schedule, .microbatches = 4});
        expect_the_same(pipeline, world);
      });
  run_in_process(4, [&](ProcessGroup& world) {
    const DeviceMesh mesh(world, {{"dp", 2}, {"pp", 2}});
    Pipeline pipeline(
        blocks(4), mesh["pp"],
        {.microbatches = 4,
         .data_parallel = mesh["dp"],
         .data_parallel_options = DistributedDataParallelOptions{.non_finite = NonFinite::ignore}});
    expect_the_same(pipeline, world);
  });
}

TEST(Pipeline, AScalerThatNoRankUsesIsNamedOnAllRanks) {
  run_in_process(2, [](ProcessGroup& world) {
    Pipeline pipeline(blocks(2), world, {.microbatches = 2});
    SGD sgd(pipeline.parameters(), torch::optim::SGDOptions(0.1));
    GradScaler scaler(world);
    pipeline.step(rows(8), loss_of);
    std::string text;
    EXPECT_EQ(fault_of([&] { scaler.step(sgd); }, &text), Fault::misuse);
    EXPECT_NE(text.find("scale() was not"), text.npos) << text;
  });
}

// --- Messages ------------------------------------------------------------------------------------

// Otherwise it is a slot that the sender has written.
bool is_copy(const torch::Tensor& x) {
  return x.storage().data_ptr().get_deleter() == c10::GetAllocator(c10::kCPU)->raw_deleter();
}

// Returns its input.
struct ProbeImpl : torch::nn::Module {
  explicit ProbeImpl(std::function<void(const torch::Tensor&)> note) : note_(std::move(note)) {
    register_module("linear", linear);
    fill(*this, 7);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    note_(x);
    return linear(x);
  }
  torch::nn::Linear linear{width, width};

 private:
  const std::function<void(const torch::Tensor&)> note_;
};
TORCH_MODULE(Probe);

// The receiver frees a slot before it reports completion.
TEST(Pipeline, AfterTheFirstStepNothingIsCopiedByTheReceiver) {
  for (const PipelineSchedule schedule :
       {PipelineSchedule::one_f_one_b, PipelineSchedule::zero_bubble, PipelineSchedule::gpipe})
    run_in_process(2, [&](ProcessGroup& world) {
      int copies = 0;
      LayerList layers = blocks(1);
      layers.add("probe",
                 [&] { return Probe([&](const torch::Tensor& x) { copies += is_copy(x); }); });
      Pipeline pipeline(layers, world, {.schedule = schedule, .microbatches = 8});
      pipeline.step(rows(8), loss_of);
      const int by_messages = copies;
      for (int step = 0; step < 20; ++step) pipeline.step(rows(8), loss_of);
      EXPECT_EQ(by_messages, world.rank() == 1 ? 8 : 0) << name_of(schedule);
      EXPECT_EQ(copies, by_messages) << name_of(schedule);
    });
}

// --- Values between stages -----------------------------------------------------------------------

using Bag = std::map<std::string, torch::Tensor>;
using Mixed = std::tuple<torch::Tensor, std::optional<torch::Tensor>, std::vector<torch::Tensor>>;

struct SplitImpl : torch::nn::Module {
  SplitImpl() {
    register_module("linear", linear);
    fill(*this, 1);
  }
  Mixed forward(const torch::Tensor& x) {
    const torch::Tensor y = linear(x);
    const torch::Tensor rare = x.size(0) > 2 ? y * 2 : torch::Tensor();
    return {y,
            rare.defined() ? std::optional(rare) : std::nullopt,
            {torch::arange(x.size(0)), torch::Tensor(), y.t()}};
  }
  torch::nn::Linear linear{width, width};
};
TORCH_MODULE(Split);

struct JoinImpl : torch::nn::Module {
  JoinImpl() { scale = register_parameter("scale", torch::full({width}, 0.5)); }
  Bag forward(const torch::Tensor& x, const std::optional<torch::Tensor>& rare,
              const std::vector<torch::Tensor>& others) {
    EXPECT_FALSE(others.at(1).defined());
    torch::Tensor y = x * scale + others.at(2).t();
    if (rare) y = y + *rare;
    return {{"sum", y}, {"a = b, c)", others.at(0)}};
  }
  torch::Tensor scale;
};
TORCH_MODULE(Join);

struct LastImpl : torch::nn::Module {
  LastImpl() {
    register_module("linear", linear);
    fill(*this, 2);
  }
  std::pair<torch::Tensor, int> forward(const Bag& bag) {
    return {linear(bag.at("sum")) * bag.at("a = b, c)").unsqueeze(1), 3};
  }
  torch::nn::Linear linear{width, width};
};
TORCH_MODULE(Last);

TEST(Pipeline, StagesPassTuplesMapsAndOptionals) {
  const auto loss = [](const std::pair<torch::Tensor, int>& output, const Microbatch&) {
    return output.first.square().mean() * output.second;
  };
  LayerList layers;
  layers.add("split", [] { return Split(); });
  layers.add("join", [] { return Join(); });
  layers.add("last", [] { return Last(); });
  // Seven rows: parts of 3, 2 and 2, of which one has the optional.
  std::map<int, Gradients> of_ranks;
  Gradients expected;
  run_in_process(1, [&](ProcessGroup& world) {
    Pipeline pipeline(layers, world, {.microbatches = 3});
    pipeline.step(rows(7), loss);
    expected = gradients_of(pipeline.named_parameters());
  });
  EXPECT_EQ(expected.size(), 5U);
  run_in_process(3, [&](ProcessGroup& world) {
    Pipeline pipeline(layers, world,
                      {.schedule = PipelineSchedule::zero_bubble, .microbatches = 3});
    for (const int count : {7, 9, 7, 7}) {  // Changing shapes.
      forget_gradients(pipeline);
      pipeline.step(rows(count), loss);
    }
    expect_close(gradients_of(pipeline.named_parameters()), expected);
  });
}

TEST(Pipeline, ALayerThatGetsAnotherStructureIsNamed) {
  LayerList layers;
  layers.add("split", [] { return Split(); });
  layers.add("last", [] { return Last(); });
  run_in_process(2, [&](ProcessGroup& world) {
    Pipeline pipeline(layers, world, {.microbatches = 2});
    try {
      pipeline.step(rows(4), [](const torch::Tensor& x, const Microbatch&) { return x.sum(); });
      FAIL() << "a tuple was taken for a map";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("layer last"), std::string::npos) << text;
      EXPECT_NE(text.find("gets tuple(tensor, nothing"), std::string::npos) << text;
      EXPECT_NE(text.find("1F0"), std::string::npos) << text;
    }
  });
}

// --- Tied weights --------------------------------------------------------------------------------

TEST(Pipeline, TiedWeightsAreOneWeight) {
  Embed embed;
  Block first(0), second(1);
  std::vector<torch::Tensor> parameters = embed->parameters();
  for (const Block& block : {first, second})
    for (const torch::Tensor& parameter : block->parameters()) parameters.push_back(parameter);
  AdamW adamw(parameters, torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 4; ++step) {
    adamw.zero_grad();
    for (int i = 0; i < 2; ++i) {
      const torch::Tensor x = second(first(embed(Microbatch{i, 2}.of(tokens()))));
      (next_token(x.matmul(embed->table->weight.t()), {i, 2}) / 2).backward();
    }
    clip_grad_norm_(parameters, 0.05);
    adamw.step();
  }

  for (const auto& [ranks, schedule] :
       {std::pair{1, PipelineSchedule::gpipe}, std::pair{2, PipelineSchedule::zbv},
        std::pair{2, PipelineSchedule::one_f_one_b}, std::pair{4, PipelineSchedule::zero_bubble}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::string(name_of(schedule)));
    run_in_process(ranks, [&](ProcessGroup& world) {
      Pipeline pipeline(language_model(), world, {.schedule = schedule, .microbatches = 2});
      AdamW optimizer(pipeline.parameters(), torch::optim::AdamWOptions(1e-2));
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        pipeline.step(tokens(), next_token);
        pipeline.clip_grad_norm_(0.05);
        optimizer.step();
      }
      for (const auto& [name, parameter] : pipeline.named_parameters()) {
        if (name == "embed.table.weight") {
          EXPECT_TRUE(torch::allclose(parameter, embed->table->weight, 1e-4, 1e-6));
        }
        EXPECT_NE(name, "head.linear.weight");
      }
    });
  }
}

TEST(Pipeline, TiedWeightsAddTheGradientsOfSeveralSteps) {
  Gradients expected;
  run_in_process(1, [&](ProcessGroup& world) {
    Pipeline pipeline(language_model(), world, {.microbatches = 2});
    for (int step = 0; step < 2; ++step) pipeline.step(tokens(), next_token);
    expected = gradients_of(pipeline.named_parameters());
  });
  run_in_process(2, [&](ProcessGroup& world) {
    Pipeline pipeline(language_model(), world, {.microbatches = 2});
    for (int step = 0; step < 2; ++step) pipeline.step(tokens(), next_token);
    expect_close(gradients_of(pipeline.named_parameters()), expected);
  });
}

TEST(Pipeline, TheFirstStageMayBeFrozen) {
  const Serial serial(4);
  for (const PipelineSchedule schedule :
       {PipelineSchedule::one_f_one_b, PipelineSchedule::zero_bubble})
    run_in_process(2, [&](ProcessGroup& world) {
      Pipeline pipeline(blocks(4), world, {.schedule = schedule});
      if (world.rank() == 0)
        for (auto& parameter : pipeline.parameters()) parameter.requires_grad_(false);
      pipeline.step(rows(8), loss_of);
      const Gradients gradients = gradients_of(pipeline.named_parameters());
      EXPECT_EQ(gradients.size(), world.rank() == 0 ? 0U : 4U);
      expect_equal(gradients, serial.gradients);
    });
}

TEST(Pipeline, AStageWithNothingToTrainMayHaveReplicas) {
  const Serial serial(4);
  LayerList frozen;
  for (int i = 0; i < 4; ++i)
    frozen.add("h." + std::to_string(i), [i] {
      Block block(i);
      for (torch::Tensor& each : block->parameters()) each.requires_grad_(i > 1);
      return block;
    });
  run_in_process(4, [&](ProcessGroup& world) {
    const DeviceMesh mesh(world, {{"pp", 2}, {"dp", 2}});
    Pipeline pipeline(frozen, mesh["pp"], {.cut = {2}, .data_parallel = mesh["dp"]});
    pipeline.step(rows(8), loss_of);
    const Gradients gradients = gradients_of(pipeline.named_parameters());
    EXPECT_EQ(pipeline.data_parallel() == nullptr, mesh.rank("pp") == 0);
    EXPECT_EQ(gradients.size(), mesh.rank("pp") == 0 ? 0U : 4U);
    expect_equal(gradients, serial.gradients);
    EXPECT_EQ(fault_of([&] {
                Pipeline(frozen, mesh["pp"],
                         {.cut = {2},
                          .data_parallel = mesh["dp"],
                          .fully_sharded = FullyShardedOptions{.units = {"h.*"}}});
              }),
              Fault::unsupported);
  });
}

TEST(Pipeline, RefusesTiesThatCannotBe) {
  const auto fault = [](const std::function<void(LayerList&)>& change) {
    LayerList layers = language_model();
    return fault_of([&] {
      change(layers);
      run_in_process(1, [&](ProcessGroup& world) { Pipeline pipeline(layers, world); });
    });
  };
  EXPECT_EQ(fault([](LayerList& layers) { layers.tie("h.0.linear.bias", "h.0.linear.weight"); }),
            Fault::misuse);
  EXPECT_EQ(fault([](LayerList& layers) { layers.tie("h.0.linear.bias", "h.9.linear.bias"); }),
            Fault::misuse);
  EXPECT_EQ(
      fault([](LayerList& layers) { layers.tie("embed.table.weight", "head.linear.weight"); }),
      Fault::misuse);
}

// --- Unequal microbatches ------------------------------------------------------------------------

// Rows have 1 to 4 targets that count.
torch::Tensor rare_targets(std::int64_t count) {
  torch::Tensor targets = (torch::arange(count * 4) * 5 % 11).view({count, 4});
  for (std::int64_t row = 0; row < count; ++row) targets[row].slice(0, 1 + row * row % 4) = -100;
  return targets;
}

double count_of(const torch::Tensor& targets) {
  return static_cast<double>(targets.ne(-100).sum().item<std::int64_t>());
}

// As docs/guide/pipeline.md shows.
TEST(Pipeline, UnequalNumbersOfTargetsCanHaveAMeanOverAll) {
  constexpr std::int64_t count = 8;
  const torch::Tensor batch = (torch::arange(count * 4) * 7 % 11).view({count, 4});
  const torch::Tensor targets = rare_targets(count);
  double loss = 0;
  Gradients expected;
  run_in_process(1, [&](ProcessGroup& self) {
    Pipeline pipeline(language_model(), self, {.microbatches = 1});
    loss = pipeline.step(batch, [&](const torch::Tensor& logits, const Microbatch&) {
      return torch::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
    });
    expected = gradients_of(pipeline.named_parameters());
  });
  for (const int dp : {1, 2})
    run_in_process(2 * dp, [&](ProcessGroup& world) {
      const DeviceMesh mesh(world, {{"pp", 2}, {"dp", dp}});
      Pipeline pipeline(language_model(), mesh["pp"],
                        {.schedule = PipelineSchedule::zero_bubble,
                         .microbatches = 4,
                         .data_parallel = mesh["dp"]});
      const auto own = [&](const torch::Tensor& all) {
        return all.chunk(dp)[static_cast<std::size_t>(mesh.rank("dp"))];
      };
      std::vector<double> tokens{count_of(own(targets))};
      mesh["dp"].all_reduce(buffer_of(tokens), ReduceOp::average);
      std::vector<double> mean{
          pipeline.step(own(batch), [&](const torch::Tensor& logits, const Microbatch& part) {
            return torch::cross_entropy_loss(logits.flatten(0, 1), part.of(own(targets)).flatten(),
                                             {}, at::Reduction::Sum) *
                   (part.count / tokens[0]);
          })};
      mesh["dp"].all_reduce(buffer_of(mean), ReduceOp::average);
      EXPECT_NEAR(mean[0], loss, 1e-6);
      expect_close(gradients_of(pipeline.named_parameters()), expected);
    });
}

// --- Activations that are computed again ---------------------------------------------------------

struct CheckpointedImpl : torch::nn::Module {
  CheckpointedImpl(int number, std::function<void()> note)
      : block(register_module("block", Block(number))), note_(std::move(note)) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return activation_checkpoint(
        [this](const torch::Tensor& y) {
          note_();
          return block(y);
        },
        block->parameters(), x);
  }
  Block block;

 private:
  const std::function<void()> note_;
};
TORCH_MODULE(Checkpointed);

TEST(Pipeline, BlocksMayBeComputedAgainInBothPartsOfBackward) {
  Gradients expected;
  for (const auto& [name, gradient] : Serial(4).gradients) {
    std::string of_block = name;
    expected[of_block.insert(of_block.find(".linear"), ".block")] = gradient;
  }
  // Forward, and backward in one part or in two. The first stage has no gradient of an input.
  for (const auto& [schedule, runs] : {std::pair{PipelineSchedule::one_f_one_b, 2},
                                       {PipelineSchedule::zero_bubble, 3},
                                       {PipelineSchedule::zbv, 3}}) {
    SCOPED_TRACE(name_of(schedule));
    run_in_process(2, [&](ProcessGroup& world) {
      int calls = 0;
      LayerList layers;
      for (int i = 0; i < 4; ++i)
        layers.add("h." + std::to_string(i), [i, &calls] {
          return Checkpointed(i, [i, &calls] { calls += i == 3 ? 1 : 0; });
        });
      Pipeline pipeline(layers, world, {.schedule = schedule});
      pipeline.step(rows(8), loss_of);
      expect_close(gradients_of(pipeline.named_parameters()), expected);
      if (calls > 0) {
        EXPECT_EQ(calls, runs * 4);
      }
    });
  }
}

// --- Several hosts -------------------------------------------------------------------------------

struct Training {
  std::vector<double> losses;
  Gradients gradients;  // For this rank's stages.
};

// Batches of several sizes.
Training trained(PipelineSchedule schedule, const ProcessGroup& world) {
  Pipeline pipeline(language_model(6), world, {.schedule = schedule, .microbatches = 2});
  Training training;
  for (const std::int64_t length : {4, 4, 9, 5}) {
    const torch::Tensor batch = (torch::arange(4 * length) * 7 % 11).view({4, length});
    const auto loss = [&](const torch::Tensor& logits, const Microbatch& part) {
      return torch::cross_entropy_loss(logits.flatten(0, 1), part.of(batch).flatten());
    };
    forget_gradients(pipeline);
    training.losses.push_back(pipeline.step(batch, loss));
    training.losses.push_back(pipeline.evaluate(batch, loss));
  }
  training.gradients = gradients_of(pipeline.named_parameters());
  return training;
}

const test::Ranks across_hosts("pipelines across hosts", [](const test::Rank& rank) {
  torch::set_num_threads(1);
  auto world = test::join_across_hosts(rank);
  for (const PipelineSchedule schedule :
       {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b, PipelineSchedule::interleaved,
        PipelineSchedule::zero_bubble, PipelineSchedule::zbv}) {
    SCOPED_TRACE(name_of(schedule));
    const Training here = trained(schedule, world);
    Training on_one_host, alone;
    run_in_process(world.size(), [&](ProcessGroup& threads) {
      const Training training = trained(schedule, threads);
      if (threads.rank() == world.rank()) on_one_host = training;
    });
    run_in_process(1, [&](ProcessGroup& self) { alone = trained(schedule, self); });
    EXPECT_EQ(here.losses, alone.losses);
    EXPECT_FALSE(here.gradients.empty());
    // One process adds up a tied weight's parts in another order.
    expect_equal(here.gradients, on_one_host.gradients);
    expect_close(here.gradients, alone.gradients);
    Gradients untied;
    for (const auto& [name, gradient] : here.gradients)
      if (name.starts_with("h.")) untied[name] = gradient;
    expect_equal(untied, alone.gradients);
  }
  destroy_process_group(world);
});

TEST(Pipeline, OnSeveralHostsEqualsOneProcess) {
  LOCKSTEP_NEEDS_ENGINE("gloo");
  // Without "shm" ranks of one host share no memory.
  for (const auto& [hosts, backend] :
       {std::pair("ab", "shm+gloo"), {"aabb", "shm+gloo"}, {"abab", "shm+gloo"}, {"aab", "gloo"}}) {
    const test::HostLayout layout{hosts, backend};
    layout.set();
    EXPECT_TRUE(all_succeeded(across_hosts.run(layout.ranks()))) << hosts << " " << backend;
    test::HostLayout::unset();
  }
}

// --- Evaluation, cuts, and refusals --------------------------------------------------------------

TEST(Pipeline, EvaluatesWithoutGradients) {
  const Serial serial(4);
  for (const PipelineSchedule schedule : {PipelineSchedule::one_f_one_b, PipelineSchedule::zbv})
    run_in_process(2, [&](ProcessGroup& world) {
      Pipeline pipeline(blocks(4), world, {.schedule = schedule});
      EXPECT_NEAR(pipeline.evaluate(rows(8), loss_of), serial.loss, 1e-7);
      for (const auto& parameter : pipeline.parameters()) EXPECT_FALSE(parameter.grad().defined());
      EXPECT_NEAR(pipeline.step(rows(8), loss_of), serial.loss, 1e-7);
      EXPECT_NEAR(pipeline.evaluate(rows(8), loss_of), serial.loss, 1e-7);
    });
}

TEST(Pipeline, IsCutByCostsOrByHand) {
  run_in_process(2, [](ProcessGroup& world) {
    EXPECT_EQ(Pipeline(blocks(4), world).first_layers(), (std::vector{0, 2}));
    EXPECT_EQ(Pipeline(blocks(4), world, {.costs = {9, 1, 1, 1}}).first_layers(),
              (std::vector{0, 1}));
    EXPECT_EQ(Pipeline(blocks(4), world, {.cut = {3}}).first_layers(), (std::vector{0, 3}));
    for (const std::vector<int>& wrong : {std::vector{0}, {4}, {-1}, {1, 2}})
      EXPECT_EQ(fault_of([&] { Pipeline(blocks(4), world, {.cut = wrong}); }), Fault::misuse);
    EXPECT_EQ(fault_of([&] { Pipeline(blocks(4), world, {.costs = {1}}); }), Fault::misuse);
    EXPECT_EQ(fault_of([&] { Pipeline(blocks(1), world); }), Fault::misuse);
    EXPECT_EQ(fault_of([&] { Pipeline(blocks(2 + world.rank()), world, {.cut = {1}}); }),
              Fault::mismatch);
  });
}

TEST(Pipeline, RanksAgreeOnCosts) {
  run_in_process(4, [](ProcessGroup& world) {
    const DeviceMesh mesh(world, {{"pp", 2}, {"dp", 2}});
    std::vector<double> costs(4, 1);
    costs[static_cast<std::size_t>(world.rank())] = 9;
    Pipeline pipeline(blocks(4), mesh["pp"], {.costs = costs, .data_parallel = mesh["dp"]});
    EXPECT_EQ(pipeline.first_layers(), (std::vector{0, 2}));
  });
}

TEST(Pipeline, RefusesCostsThatAreNone) {
  const double infinite = std::numeric_limits<double>::infinity();
  run_in_process(1, [&](ProcessGroup& world) {
    for (const double wrong : {infinite, std::nan(""), -1.})
      EXPECT_EQ(fault_of([&] {
                  Pipeline(blocks(3), world, {.costs = {wrong, 1, 1}});
                }),
                Fault::misuse)
          << wrong;
  });
}

TEST(Pipeline, RefusesOptionsThatItCannotHonour) {
  run_in_process(1, [](ProcessGroup& world) {
    const auto fault = [&](const PipelineOptions& options) {
      return fault_of([&] { Pipeline(blocks(4), world, options); });
    };
    // Losses would be divided twice.
    EXPECT_EQ(fault({.data_parallel = world,
                     .data_parallel_options =
                         DistributedDataParallelOptions{.mean = GradientMean::over_samples}}),
              Fault::unsupported);
    EXPECT_EQ(fault({.data_parallel = world,
                     .fully_sharded = FullyShardedOptions{.mean = GradientMean::over_samples}}),
              Fault::unsupported);

    EXPECT_EQ(fault({.data_parallel = world,
                     .fully_sharded = FullyShardedOptions{.offload = torch::Device(torch::kCUDA)}}),
              Fault::unsupported);

    const PipelineOrder order = make_pipeline_order(PipelineSchedule::gpipe, {.ranks = 1});
    EXPECT_EQ(fault({.schedule = PipelineSchedule::gpipe, .order = order}), Fault::misuse);
    EXPECT_EQ(fault({.microbatches = 4, .order = order}), Fault::misuse);
    EXPECT_EQ(fault({.stages_per_rank = 1, .order = order}), Fault::misuse);
    EXPECT_EQ(fault({.schedule = PipelineSchedule::zbv, .cut = {2}, .costs = {1, 1, 1, 1}}),
              Fault::misuse);
    const DistributedDataParallelOptions ddp;
    EXPECT_EQ(fault({.data_parallel_options = ddp}), Fault::misuse);
    EXPECT_EQ(fault({.data_parallel = world,
                     .data_parallel_options = ddp,
                     .fully_sharded = FullyShardedOptions{}}),
              Fault::misuse);
    EXPECT_EQ(fault({.fully_sharded = FullyShardedOptions{}}), Fault::misuse);
  });
}

struct NarrowImpl : torch::nn::Module {
  explicit NarrowImpl(std::int64_t inner) {
    in = register_module("in", torch::nn::Linear(width, inner));
    out = register_module("out", torch::nn::Linear(inner, width));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(in(x)); }
  torch::nn::Linear in{nullptr}, out{nullptr};
};
TORCH_MODULE(Narrow);

TEST(Pipeline, RanksCompareLayersAndOptions) {
  run_in_process(2, [](ProcessGroup& world) {
    const DeviceMesh mesh(world, {{"pp", 2}, {"dp", 1}});
    const bool is_second = world.rank() == 1;
    LayerList narrow;
    for (const char* name : {"a", "b"}) narrow.add(name, [&] { return Narrow(is_second ? 3 : 4); });
    std::string text;
    EXPECT_EQ(fault_of([&] { Pipeline(narrow, world); }, &text), Fault::mismatch);
    EXPECT_NE(text.find("rank 1 has a.in.bias is Float [3], trained"), text.npos) << text;

    const auto fault = [&](PipelineOptions one, const PipelineOptions& other) {
      return fault_of([&] { Pipeline(blocks(4), world, is_second ? other : one); }, &text);
    };
    const PipelineOptions sharded{.data_parallel = mesh["dp"],
                                  .fully_sharded = FullyShardedOptions{.units = {"h.*"}}};
    EXPECT_EQ(fault({.data_parallel = mesh["dp"]}, sharded), Fault::mismatch);
    EXPECT_EQ(fault({.cut = {1}}, {.costs = {1, 1, 1, 1}}), Fault::mismatch);

    // Only the second rank can detect it.
    EXPECT_EQ(fault({}, {.cut = {4}}), is_second ? Fault::misuse : Fault::aborted);
    EXPECT_NE(text.find("a cut increases from 1 to at most 3"), text.npos) << text;
  });
}

TEST(Pipeline, ALayerThatCannotBeCutEndsTheConstructorOnAllRanks) {
  run_in_process(4, [](ProcessGroup& world) {
    const DeviceMesh mesh(world, {{"pp", 2}, {"tp", 2}});
    LayerList layers = blocks(2);  // Their Linears are LibTorch's.
    layers.parallelize(mesh["tp"], {{"h.1.linear", ColwiseParallel()}});
    std::string text;
    EXPECT_EQ(fault_of([&] { Pipeline(layers, mesh["pp"]); }, &text),
              mesh.rank("pp") == 1 ? Fault::misuse : Fault::aborted);
    EXPECT_NE(text.find("h.1.linear"), text.npos) << text;
  });
}

TEST(Pipeline, RefusesTooFewRowsAndBadNames) {
  run_in_process(1, [](ProcessGroup& world) {
    Pipeline pipeline(blocks(2), world);
    EXPECT_EQ(fault_of([&] { pipeline.step(rows(3), loss_of); }), Fault::misuse);
    EXPECT_NO_THROW(pipeline.step(rows(8), loss_of));
  });
  LayerList layers = blocks(1);
  for (const char* name : {"", "h", "h.0", ".a", "a."})
    EXPECT_EQ(fault_of([&] { layers.add(name, [] { return Block(0); }); }), Fault::misuse) << name;
  layers.add("h.0.linear", [] { return Block(0); });
  EXPECT_EQ(fault_of([&] {
              run_in_process(1, [&](ProcessGroup& world) { Pipeline pipeline(layers, world); });
            }),
            Fault::misuse);
}

TEST(Pipeline, RefusesRanksWithDifferentBatches) {
  const auto expect_refused = [](const std::function<torch::Tensor(int rank)>& batch_of,
                                 const std::string& difference) {
    run_in_process(3, [&](ProcessGroup& world) {
      Pipeline pipeline(blocks(3), world, {.microbatches = 2});
      const auto sum = [](const torch::Tensor& output, const Microbatch&) { return output.sum(); };
      std::string text;
      EXPECT_EQ(fault_of([&] { pipeline.step(batch_of(world.rank()), sum); }, &text),
                Fault::mismatch);
      EXPECT_NE(text.find("rank 0 has 4 rows, rank 2 " + difference), text.npos) << text;
    });
  };
  expect_refused([](int rank) { return rows(rank == 2 ? 6 : 4); }, "6 rows");
  expect_refused([](int rank) { return rows(4, rank == 2 ? 1 : 0); }, "other values");
}

TEST(Pipeline, AnExceptionReachesAllRanks) {
  run_in_process(3, [](ProcessGroup& world) {
    Pipeline pipeline(blocks(3), world, {.microbatches = 2});
    const auto fails = [](const torch::Tensor& output, const Microbatch& part) {
      if (part.index == 1) throw std::runtime_error("a bad label");
      return output.sum();
    };
    try {
      pipeline.step(rows(8), fails);
      ADD_FAILURE() << "no exception on rank " << world.rank();
    } catch (const std::exception& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("a bad label"), std::string::npos) << text;
      if (world.rank() != 2) {
        EXPECT_NE(text.find("2F1"), std::string::npos) << text;
      }
    }
    EXPECT_EQ(fault_of([&] { pipeline.step(rows(8), loss_of); }), Fault::misuse);
  });
}

TEST(Pipeline, AnExceptionReachesReplicas) {
  run_in_process(4, [](ProcessGroup& world) {
    const DeviceMesh mesh(world, {{"pp", 2}, {"dp", 2}});
    Pipeline pipeline(blocks(4), mesh["pp"], {.microbatches = 2, .data_parallel = mesh["dp"]});
    const auto fails = [&](const torch::Tensor& output, const Microbatch&) {
      if (mesh.rank("dp") == 0) throw std::runtime_error("a bad label");
      return output.sum();
    };
    const auto begin = Clock::now();
    try {
      pipeline.step(rows(8), fails);
      ADD_FAILURE() << "no exception on rank " << world.rank();
    } catch (const std::exception& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("a bad label"), std::string::npos) << text;
    }
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  });
}

}  // namespace
}  // namespace lockstep::pipeline_test
