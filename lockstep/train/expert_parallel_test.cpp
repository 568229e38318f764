// A mixture of experts on several ranks: compares weights after some steps with one process, and
// tests checkpoints that any number of ranks loads.

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/comm/device_mesh.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/nn/experts.h"
#include "lockstep/optim/clip_grad_norm.h"
#include "lockstep/optim/mixed_precision.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/deterministic/deterministic_data_parallel.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/parallel/tensor_parallel/check_parallel.h"
#include "lockstep/parallel/tensor_parallel/parallelize_module.h"
#include "lockstep/tensor/activation_checkpoint.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/sharded_module.h"
#include "lockstep/train/training_state.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/known_numbers.h"

namespace lockstep::train::expert_parallel_test {
namespace {

using test::fault_of;
using test::numbers;

struct Net : torch::nn::Module {
  Net() {
    register_module("in", in);
    register_module("experts", experts);
    register_module("out", out);
    to(at::kDouble);
    const at::NoGradGuard no_grad;
    double seed = 0;
    for (auto& item : named_parameters())
      item.value().copy_(numbers(item.value().sizes(), ++seed) * 0.5);
  }

  // Returns the prediction, and the router's losses.
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    const auto block = [&](const at::Tensor& y) {
      const nn::ExpertsOutput result = experts(y);
      return std::tuple(y + result.output, 0.1 * result.balance_loss + 0.01 * result.z_loss);
    };
    const at::Tensor y = in(x);
    const auto [z, loss] =
        recompute ? activation_checkpoint(block, experts->parameters(), y) : block(y);
    return {out(z), loss};
  }

  bool recompute = false;
  torch::nn::Linear in{4, 8}, out{8, 2};
  nn::Experts experts{nn::ExpertsOptions(8, 6, 4).swiglu(true)};
};

constexpr int steps = 4;

struct Mesh {
  std::string name;
  int dp, ep;
  bool recompute = false;
};
const Mesh one{"1", 1, 1};
const std::vector<Mesh> meshes = {{"ep2", 1, 2},
                                  {"ep4", 1, 4},
                                  {"dp2 ep2", 2, 2},
                                  {"dp2", 2, 1},
                                  {"ep2, recomputed", 1, 2, true}};

struct Training {
  Training(const Mesh& shape, const ProcessGroup& world, NonFinite non_finite = NonFinite::fail)
      : mesh(world, {{"dp", shape.dp}, {"ep", shape.ep}}),
        net(make(shape)),
        ddp(net, world, {.non_finite = non_finite}),
        adamw(net->parameters(), torch::optim::AdamWOptions(1e-2)) {
    state.add("model", ddp);
    state.add("optimizer", adamw, *net);
  }

  std::shared_ptr<Net> make(const Mesh& shape) const {
    auto whole = std::make_shared<Net>();
    whole->recompute = shape.recompute;
    parallelize_module(*whole, mesh["ep"], {{"experts", ExpertParallel({.replicas = mesh["dp"]})}});
    return whole;
  }

  // Two passes of 8 rows each, of which each rank takes its part.
  void backward(int number, const std::function<at::Tensor(const at::Tensor&)>& scaled) {
    adamw.zero_grad();
    for (const int pass : {0, 1}) {
      const auto no_sync = ddp.no_sync(pass == 0);
      const auto part = [&](const at::Tensor& rows) {
        return rows.chunk(mesh.group().size(), 0)[static_cast<std::size_t>(mesh.group().rank())];
      };
      const at::Tensor x = numbers({8, 4}, 2 * number + pass);
      const auto [y, router_loss] = ddp(part(x));
      const at::Tensor target = part(x.narrow(1, 0, 2) * x.narrow(1, 2, 2));
      scaled((y - target).pow(2).mean() + router_loss).backward();
    }
  }

  void step(int number) {
    backward(number, [](const at::Tensor& loss) { return loss; });
    norms.push_back(clip_grad_norm_(*net, 0.5).item<double>());
    adamw.step();
  }

  DeviceMesh mesh;
  std::shared_ptr<Net> net;
  DistributedDataParallel<Net> ddp;
  AdamW adamw;
  TrainingState state;
  std::vector<double> norms;  // Norm of each step's gradients.
};

TEST(ExpertParallel, TrainsToTheWeightsOfOneProcess) {
  NamedTensors expected;
  std::vector<double> norms;
  run_in_process(1, [&](ProcessGroup& world) {
    Training training(one, world);
    for (int step = 0; step < steps; ++step) training.step(step);
    expected = named_parameters(*training.net);
    norms = training.norms;
  });
  for (const Mesh& shape : meshes)
    run_in_process(shape.dp * shape.ep, [&](ProcessGroup& world) {
      Training training(shape, world);
      EXPECT_EQ(training.net->experts->up.size(0), 4 / shape.ep);
      for (int step = 0; step < steps; ++step) training.step(step);
      for (int step = 0; step < steps; ++step)
        EXPECT_NEAR(training.norms[step], norms[step], 1e-9) << shape.name;
      const NamedTensors ours = whole_parameters(*training.net);
      ASSERT_EQ(ours.size(), expected.size());
      for (std::size_t i = 0; i < ours.size(); ++i)
        EXPECT_LE((ours[i].second - expected[i].second).abs().max().item<double>(), 1e-9)
            << shape.name << ": " << ours[i].first;
    });
}

// In every third step, only one rank's experts have an infinite gradient.
TEST(ExpertParallel, AScalerOmitsAStepInWhichAnExpertOverflows) {
  constexpr int all_steps = 7;
  const auto is_bad = [](int step) { return step % 3 == 1; };
  NamedTensors expected;
  std::vector<double> norms;
  run_in_process(1, [&](ProcessGroup& world) {
    Training training(one, world);
    for (int step = 0; step < all_steps; ++step)
      if (!is_bad(step)) training.step(step);
    expected = named_parameters(*training.net);
    norms = training.norms;
  });
  for (const Mesh& shape : meshes)
    run_in_process(shape.dp * shape.ep, [&](ProcessGroup& world) {
      Training training(shape, world, NonFinite::ignore);
      GradScaler scaler(world, {.init_scale = 1024, .growth_interval = 2});
      for (int step = 0; step < all_steps; ++step) {
        training.backward(step, [&](const at::Tensor& loss) { return scaler.scale(loss); });
        if (is_bad(step) && world.rank() == step % world.size())
          training.net->experts->up.grad().view(-1)[0] = std::numeric_limits<double>::infinity();
        scaler.unscale_(training.adamw);
        const double norm = clip_grad_norm_(*training.net, 0.5).item<double>();
        if (!is_bad(step)) training.norms.push_back(norm);
        EXPECT_EQ(scaler.step(training.adamw), !is_bad(step)) << shape.name << ", step " << step;
        scaler.update();
      }
      EXPECT_EQ(scaler.get_scale(), 1024) << "halved twice, and doubled as often";
      ASSERT_EQ(training.norms.size(), norms.size());
      for (std::size_t i = 0; i < norms.size(); ++i)
        EXPECT_NEAR(training.norms[i], norms[i], 1e-9) << shape.name;
      const NamedTensors ours = whole_parameters(*training.net);
      for (std::size_t i = 0; i < ours.size(); ++i)
        EXPECT_LE((ours[i].second - expected[i].second).abs().max().item<double>(), 1e-9)
            << shape.name << ": " << ours[i].first;
    });
}

TEST(ExpertParallel, PassesTheCheckOfParallelModels) {
  run_in_process(4, [&](ProcessGroup& world) {
    const DeviceMesh mesh(world, {{"dp", 2}, {"ep", 2}});
    const at::Tensor x = numbers({8, 4}, 3);
    const auto loss_of = [](const std::pair<at::Tensor, at::Tensor>& result) {
      return result.first.pow(2).mean() + result.second;
    };
    const ParallelCheck check = check_passes(
        [&](bool is_parallel) -> Pass {
          const auto net = std::make_shared<Net>();
          if (!is_parallel) {
            const at::Tensor loss = loss_of(net->forward(x));
            loss.backward();
            return {net, loss};
          }
          parallelize_module(*net, mesh["ep"],
                             {{"experts", ExpertParallel({.replicas = mesh["dp"]})}});
          DistributedDataParallel ddp(net, world);
          const at::Tensor loss =
              loss_of(ddp(x.chunk(4, 0)[static_cast<std::size_t>(world.rank())]));
          loss.backward();
          const at::Tensor mean = loss.detach().clone();
          all_reduce(mean, world, ReduceOp::average);
          return {net, mean};
        },
        world, {.tolerance = 1e-12});
    EXPECT_EQ(check.parameters, 8);
  });
}

TEST(ExpertParallel, ReplicasBeginWithTheSameExperts) {
  run_in_process(4, [&](ProcessGroup& world) {
    const DeviceMesh mesh(world, {{"dp", 2}, {"ep", 2}});
    const auto net = std::make_shared<Net>();
    const std::string digest = sha256(*net);
    const at::NoGradGuard no_grad;
    if (mesh.rank("dp") == 1)
      for (const at::Tensor& parameter : net->parameters()) parameter.mul_(2);
    parallelize_module(*net, mesh["ep"], {{"experts", ExpertParallel({.replicas = mesh["dp"]})}});
    const DistributedDataParallel ddp(net, world);
    EXPECT_EQ(sha256(*net), digest);
  });
}

TEST(ExpertParallel, HasTheSameBitsInEveryRun) {
  run_in_process(2, [&](ProcessGroup& world) {
    Training first(meshes[0], world), second(meshes[0], world);
    for (int step = 0; step < 2; ++step) {
      first.step(step);
      second.step(step);
    }
    EXPECT_EQ(sha256(*first.net), sha256(*second.net));
  });
}

TEST(ExpertParallel, IsSavedOnSomeRanksAndLoadedOnOthers) {
  const test::ScratchDirectory scratch;
  const Mesh &ep2 = meshes[0], &dp2ep2 = meshes[2];
  for (const auto& [from, to] :
       {std::pair(ep2, one), std::pair(one, dp2ep2), std::pair(dp2ep2, ep2)}) {
    const auto folder = scratch.path() / from.name;
    std::string digest;
    NamedTensors expected;  // After another step.
    run_in_process(from.dp * from.ep, [&](ProcessGroup& world) {
      Training training(from, world);
      training.step(0);
      Checkpointer(folder, world).save(1, training.state);
      const std::string saved = sha256(*training.net);
      training.step(1);
      const NamedTensors trained = whole_parameters(*training.net);
      if (world.rank() != 0) return;
      digest = saved;
      expected = trained;
    });
    run_in_process(to.dp * to.ep, [&](ProcessGroup& world) {
      Training training(to, world);
      EXPECT_EQ(Checkpointer(folder, world).resume(training.state)->step, 1);
      EXPECT_EQ(sha256(*training.net), digest) << from.name << " to " << to.name;
      training.step(1);
      const NamedTensors ours = whole_parameters(*training.net);
      for (std::size_t i = 0; i < ours.size(); ++i)
        EXPECT_LE((ours[i].second - expected[i].second).abs().max().item<double>(), 1e-9)
            << from.name << " to " << to.name << ": " << ours[i].first;
    });
  }
}

TEST(ExpertParallel, RefusesWhatWouldAverageOtherExperts) {
  torch::set_num_threads(1);
  run_in_process(4, [&](ProcessGroup& world) {
    const DeviceMesh mesh(world, {{"dp", 2}, {"ep", 2}});
    const auto net = std::make_shared<Net>();
    std::string text;
    const auto cut = [&](const ExpertParallel& style) {
      return [&, style] { parallelize_module(*net, mesh["ep"], {{"experts", style}}); };
    };
    EXPECT_EQ(fault_of(cut({.replicas = mesh["ep"]}), &text), Fault::misuse);
    EXPECT_NE(text.find("which have different experts"), text.npos) << text;
    EXPECT_TRUE(layouts_of(*net).empty());

    cut({})();
    EXPECT_EQ(fault_of([&] { DistributedDataParallel(net, world); }, &text), Fault::misuse);
    EXPECT_NE(text.find("experts.down is cut over the 2 ranks of"), text.npos) << text;
    for (const auto& options : {DistributedDataParallelOptions{.share_parameters = true},
                                DistributedDataParallelOptions{.non_finite = NonFinite::skip},
                                DistributedDataParallelOptions{.mean = GradientMean::over_samples}})
      EXPECT_EQ(fault_of([&] { DistributedDataParallel(net, mesh["ep"], options); }),
                Fault::unsupported);
    EXPECT_EQ(fault_of([&] { DeterministicDataParallel(net, mesh["ep"], {.microbatches = 4}); }),
              Fault::unsupported);
    DistributedDataParallel ddp(net, mesh["ep"]);
    EXPECT_EQ(fault_of([&] { ddp.edit_parameters([] {}); }), Fault::unsupported);
    EXPECT_EQ(fault_of([&] { ddp.join([] {}); }, &text), Fault::unsupported);
    EXPECT_NE(text.find("join() does not go together with experts that are cut over ranks"),
              text.npos)
        << text;
    const torch::optim::AdamWOptions options(1e-2);
    EXPECT_EQ(
        fault_of([&] { ZeroRedundancyOptimizer<AdamW>(net->parameters(), mesh["ep"], options); }),
        Fault::mismatch);
    ZeroRedundancyOptimizer<AdamW> zero({net->in->weight}, mesh["ep"], options);
    EXPECT_EQ(fault_of([&] { ddp.shard_gradients(zero); }), Fault::unsupported);
  });
}

// The right number of ranks, but other ranks.
TEST(ExpertParallel, RefusesAsManyOtherRanks) {
  run_in_process(4, [](ProcessGroup& world) {
    const DeviceMesh mesh(world, {{"ep", 2}, {"tp", 2}});
    const auto net = std::make_shared<Net>();
    parallelize_module(*net, mesh["ep"], {{"experts", ExpertParallel()}});
    std::string text;
    EXPECT_EQ(fault_of([&] { DistributedDataParallel(net, mesh["tp"]); }, &text), Fault::misuse);
    EXPECT_NE(text.find("experts.down is cut over the 2 ranks of"), text.npos) << text;
    DistributedDataParallel(net, mesh["ep"]);
  });
}

}  // namespace
}  // namespace lockstep::train::expert_parallel_test
