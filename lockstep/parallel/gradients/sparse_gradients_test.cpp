// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/sparse_gradients.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/embedding.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/optim/clip_grad_norm.h"
#include "lockstep/optim/optimizer_stateful.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/deterministic/deterministic_data_parallel.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/replicate/noise_scale.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/tensor/named_tensors.h"
#include "tests/fault_of.h"
#include "tests/saved_state.h"

namespace lockstep::parallel::sparse_gradients_test {
namespace {

using test::fault_of;
using Options = DistributedDataParallelOptions;

constexpr std::int64_t words = 11;

// Fixed weights: threads share the generator.
struct Net : torch::nn::Module {
  explicit Net(bool sparse)
      : embedding(torch::nn::EmbeddingOptions(words, 4).sparse(sparse)), out(4, 3) {
    register_module("embedding", embedding);
    register_module("out", out);
    to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    for (auto& weights : parameters())
      weights.copy_(torch::arange(weights.numel()).view(weights.sizes()).sin());
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    return out(tokens.defined() ? embedding(tokens).sum(0) : torch::ones({4}, torch::kDouble));
  }

  torch::Tensor gradient() const { return embedding->weight.grad(); }

  torch::nn::Embedding embedding;
  torch::nn::Linear out;
};

torch::Tensor tokens_of(int step, int rank) {
  return (torch::arange(6) * (rank + 2) + step * step).remainder(words);
}

torch::Tensor loss_of(const torch::Tensor& out) { return out.pow(2).sum(); }

void expect_equal(const Net& a, const Net& b) {
  for (std::size_t i = 0; i < a.parameters().size(); ++i)
    EXPECT_LE((a.parameters()[i] - b.parameters()[i]).abs().max().item<double>(), 1e-12);
}

struct Twins {
  Twins(const ProcessGroup& world, const Options& options)
      : sparse_ddp(sparse, world, options), dense_ddp(dense, world, options) {}

  void backward(const torch::Tensor& tokens) {
    loss_of(sparse_ddp(tokens)).backward();
    loss_of(dense_ddp(tokens)).backward();
  }

  void expect_equal_gradients() const {
    EXPECT_TRUE(sparse->gradient().is_coalesced());
    EXPECT_LE((sparse->gradient().to_dense() - dense->gradient()).abs().max().item<double>(),
              1e-12);
  }

  std::shared_ptr<Net> sparse = std::make_shared<Net>(true);
  std::shared_ptr<Net> dense = std::make_shared<Net>(false);
  DistributedDataParallel<Net> sparse_ddp, dense_ddp;
};

template <class Optimizer, class OptimizerOptions>
void train(Twins& twins, const ProcessGroup& world, const OptimizerOptions& options) {
  Optimizer sparse(twins.sparse->parameters(), options);
  Optimizer dense(twins.dense->parameters(), options);
  for (int step = 0; step < 6; ++step) {
    sparse.zero_grad(/*set_to_none=*/step % 2 == 0);
    dense.zero_grad();
    twins.backward(tokens_of(step, world.rank()));
    twins.expect_equal_gradients();
    const double norm = clip_grad_norm_(*twins.sparse, 0.5).item<double>();
    EXPECT_NEAR(clip_grad_norm_(*twins.dense, 0.5).item<double>(), norm, 1e-12 * norm);
    sparse.step();
    dense.step();
    expect_equal(*twins.sparse, *twins.dense);
  }
}

TEST(SparseGradients, TrainAsDenseOnesDo) {
  for (const int ranks : {1, 2, 3})
    for (const bool overlap : {false, true})
      run_in_process(ranks, [&](ProcessGroup& world) {
        const Options options{.bucket_cap_mb = 1e-5, .overlap = overlap};
        Twins by_sgd(world, options);
        train<torch::optim::SGD>(by_sgd, world, torch::optim::SGDOptions(0.05).momentum(0.9));
        Twins by_adagrad(world, options);
        train<torch::optim::Adagrad>(by_adagrad, world, torch::optim::AdagradOptions(0.05));
      });
}

TEST(SparseGradients, RanksMayHaveNone) {
  run_in_process(3, [](ProcessGroup& world) {
    Twins twins(world, {.find_unused_parameters = true});
    const torch::Tensor none = torch::empty({0}, torch::kLong);
    const torch::Tensor unused;
    for (int first = 0; first < 3; ++first) {
      const torch::Tensor given[] = {tokens_of(1, 0), none, unused};
      for (const auto& net : {twins.sparse, twins.dense}) net->zero_grad();
      twins.backward(given[(world.rank() + first) % 3]);
      twins.expect_equal_gradients();
    }
    for (const auto& net : {twins.sparse, twins.dense}) net->zero_grad();
    twins.backward(none);  // On all ranks.
    EXPECT_EQ(twins.sparse->gradient()._nnz(), 0);
    twins.backward(unused);
    EXPECT_EQ(twins.sparse->gradient()._nnz(), 0);
  });
}

TEST(SparseGradients, ModulesMayHaveNoOtherGradients) {
  for (const bool overlap : {false, true})
    run_in_process(2, [&](ProcessGroup& world) {
      torch::nn::Embedding net(torch::nn::EmbeddingOptions(words, 2).sparse(true));
      DistributedDataParallel ddp(net, world, {.overlap = overlap});
      for (int pass = 0; pass < 3; ++pass) {  // Buckets are rebuilt after the first one.
        net->zero_grad();
        ddp(torch::full({1}, world.rank())).sum().backward();
        EXPECT_TRUE(torch::equal(net->weight.grad().to_dense().sum(1).slice(0, 0, 3),
                                 torch::tensor({1.0F, 1.0F, 0.0F})));
      }
    });
}

TEST(SparseGradients, AccumulateAndAreMeansOverSamplesAndInJoin) {
  run_in_process(3, [](ProcessGroup& world) {
    Twins twins(world, {.static_graph = true, .mean = GradientMean::over_samples});
    for (int step = 0; step < 3; ++step) {
      for (const auto& net : {twins.sparse, twins.dense}) net->zero_grad();
      for (int part = 0; part < 3; ++part) {
        const auto alone = twins.sparse_ddp.no_sync(part < 2);
        const auto alone_too = twins.dense_ddp.no_sync(part < 2);
        for (DataParallelBase* ddp : {static_cast<DataParallelBase*>(&twins.sparse_ddp),
                                      static_cast<DataParallelBase*>(&twins.dense_ddp)})
          ddp->count_samples(world.rank() + part);
        twins.backward(tokens_of(3 * step + part, world.rank()));
      }
      twins.expect_equal_gradients();
    }
  });
  run_in_process(3, [](ProcessGroup& world) {
    Twins twins(world, {});
    const auto steps = [&](Net& net, DistributedDataParallel<Net>& ddp) {
      torch::optim::SGD sgd(net.parameters(), 0.05);
      ddp.join([&] {
        for (int step = 0; step < 2 + world.rank(); ++step) {
          sgd.zero_grad();
          loss_of(ddp(tokens_of(step, world.rank()))).backward();
          sgd.step();
        }
      });
    };
    steps(*twins.sparse, twins.sparse_ddp);
    steps(*twins.dense, twins.dense_ddp);
    expect_equal(*twins.sparse, *twins.dense);
  });
}

TEST(SparseGradients, NonFiniteOnesFailOrAreSkippedOnAllRanks) {
  for (const NonFinite reaction : {NonFinite::fail, NonFinite::skip})
    run_in_process(2, [&](ProcessGroup& world) {
      const auto net = std::make_shared<Net>(true);
      DistributedDataParallel ddp(net, world, {.non_finite = reaction});
      auto out = ddp(tokens_of(0, world.rank()));
      if (world.rank() == 1)
        net->embedding->weight.register_hook([](const torch::Tensor& gradient) {
          const torch::Tensor bad = gradient.clone();
          bad._values()[2][1] = std::numeric_limits<double>::infinity();
          return bad;
        });
      std::string text;
      const auto backward = [&] { loss_of(out).backward(); };
      if (reaction == NonFinite::fail) {
        EXPECT_EQ(fault_of(backward, &text), Fault::corrupt);
        EXPECT_NE(text.find("embedding.weight"), text.npos) << text;
      } else {
        backward();
      }
      ASSERT_TRUE(ddp.non_finite());
      EXPECT_EQ(ddp.non_finite()->rank, 1);
      EXPECT_EQ(ddp.non_finite()->parameter, "embedding.weight");
      EXPECT_FALSE(net->gradient().defined());
      EXPECT_FALSE(net->out->weight.grad().defined());
    });
}

TEST(SparseGradients, AreSteppedAndClippedByZeroRedundancyOptimizer) {
  run_in_process(2, [](ProcessGroup& world) {
    Twins twins(world, {});
    ZeroRedundancyOptimizer<torch::optim::SGD> sparse(twins.sparse->parameters(), world,
                                                      torch::optim::SGDOptions(0.05));
    ZeroRedundancyOptimizer<torch::optim::SGD> dense(twins.dense->parameters(), world,
                                                     torch::optim::SGDOptions(0.05));
    for (int step = 0; step < 3; ++step) {
      sparse.zero_grad();
      dense.zero_grad();
      twins.backward(tokens_of(step, world.rank()));
      const double norm = sparse.clip_grad_norm_(0.5);
      EXPECT_NEAR(dense.clip_grad_norm_(0.5), norm, 1e-12 * norm);
      sparse.step();
      dense.step();
      expect_equal(*twins.sparse, *twins.dense);
    }
  });
}

TEST(SparseGradients, StateOfTheirOptimizersIsSavedAndLoaded) {
  run_in_process(2, [](ProcessGroup& world) {
    const torch::optim::SGDOptions options = torch::optim::SGDOptions(0.05).momentum(0.9);
    Twins saved(world, {}), resumed(world, {});
    torch::optim::SGD first(saved.sparse->parameters(), options);
    torch::optim::SGD second(resumed.sparse->parameters(), options);
    const auto step = [&](Twins& twins, torch::optim::SGD& sgd, int number) {
      sgd.zero_grad();
      loss_of(twins.sparse_ddp(tokens_of(number, world.rank()))).backward();
      sgd.step();
    };
    for (int i = 0; i < 3; ++i) step(saved, first, i);
    const auto state = [](torch::optim::SGD& sgd, Twins& twins) {
      return state_of(sgd, named_parameters(*twins.sparse));
    };
    test::SavedState copy;
    copy.add(state(first, saved)->state_dict(), 0);
    EXPECT_EQ(copy.whole().tensors.at("embedding.weight.momentum_buffer").data.layout(),
              at::kStrided);
    test::load(*state(second, resumed), copy.whole());
    {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < 3; ++i)
        resumed.sparse->parameters()[i].copy_(saved.sparse->parameters()[i]);
    }
    for (int i = 3; i < 6; ++i) {
      step(saved, first, i);
      step(resumed, second, i);
    }
    EXPECT_EQ(sha256(*saved.sparse), sha256(*resumed.sparse));
  });
}

struct Functional : torch::nn::Module {
  explicit Functional(bool also_dense) : also_dense_(also_dense) {
    weight = register_parameter("weight", torch::ones({words, 2}));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto rows = torch::embedding(weight, tokens, /*padding_idx=*/-1,
                                       /*scale_grad_by_freq=*/false, /*sparse=*/true);
    return also_dense_ ? rows.sum() + weight.sum() : rows;
  }
  torch::Tensor weight;

 private:
  const bool also_dense_;
};

TEST(SparseGradients, RequireAnOptionForOtherModules) {
  run_in_process(2, [](ProcessGroup& world) {
    const auto net = std::make_shared<Functional>(false);
    std::string text;
    DistributedDataParallel unnamed(net, world);
    EXPECT_EQ(fault_of([&] { loss_of(unnamed(tokens_of(0, 0))).backward(); }, &text),
              Fault::unsupported);
    EXPECT_NE(text.find("parameter weight is sparse: name"), text.npos) << text;
    const auto again = std::make_shared<Functional>(false);
    DistributedDataParallel ddp(again, world, {.sparse_gradients = {"weight"}});
    loss_of(ddp(torch::full({1}, world.rank()))).backward();
    EXPECT_TRUE(torch::equal(again->weight.grad().to_dense().sum(1).slice(0, 0, 3),
                             torch::tensor({2.0F, 2.0F, 0.0F})));
    EXPECT_EQ(
        fault_of([&] { DistributedDataParallel(net, world, Options{.sparse_gradients = {"w"}}); },
                 &text),
        Fault::misuse);
    EXPECT_NE(text.find("no parameter 'w'"), text.npos) << text;
  });
  run_in_process(2, [](ProcessGroup& world) {
    DistributedDataParallel ddp(std::make_shared<Functional>(true), world,
                                {.sparse_gradients = {"weight"}});
    std::string text;
    EXPECT_EQ(fault_of([&] { loss_of(ddp(tokens_of(0, 0))).backward(); }, &text),
              Fault::unsupported);
    EXPECT_NE(text.find("weight is dense, and a sparse one was expected"), text.npos) << text;
  });
}

void expect_refused(const char* feature, const std::function<void()>& call) {
  std::string text;
  EXPECT_EQ(fault_of(call, &text), Fault::unsupported) << feature << ": " << text;
  EXPECT_NE(text.find("sparse gradients"), text.npos) << feature << ": " << text;
  EXPECT_NE(text.find(feature), text.npos) << text;
}

TEST(SparseGradients, AreRefusedWhereGradientsHaveToBeDense) {
  torch::set_num_threads(1);
  run_in_process(2, [](ProcessGroup& world) {
    const auto net = [] { return std::make_shared<Net>(true); };
    expect_refused("share_parameters", [&] {
      DistributedDataParallel(net(), world, Options{.share_parameters = true});
    });
    expect_refused("DeterministicDataParallel",
                   [&] { DeterministicDataParallel(net(), world, {.microbatches = 2}); });
    expect_refused("FullyShardedDataParallel", [&] { FullyShardedDataParallel(net(), world); });
    DistributedDataParallel ddp(net(), world);
    expect_refused("register_comm_hook()", [&] { ddp.register_comm_hook(bf16_compress_hook()); });
    ZeroRedundancyOptimizer<torch::optim::SGD> sgd(ddp.module()->parameters(), world,
                                                   torch::optim::SGDOptions(0.1));
    expect_refused("shard_gradients()", [&] { ddp.shard_gradients(sgd); });
    expect_refused("NoiseScale", [&] { NoiseScale(ddp, {.batch_size = 8}); });
    loss_of(ddp(tokens_of(0, 0))).backward();
    SGD fused(ddp.module()->parameters(), 0.1);
    EXPECT_EQ(fault_of([&] { fused.step(); }), Fault::unsupported);
  });
}

}  // namespace
}  // namespace lockstep::parallel::sparse_gradients_test
