// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/reducer.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <barrier>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/parallel/gradients/backward_pass.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/collectives.h"
#include "tests/fault_of.h"

namespace lockstep::parallel::reducer_test {
namespace {

using test::fault_of;
using Options = DistributedDataParallelOptions;

// forward() uses the weights of the given indices.
struct Choice : torch::nn::Module {
  Choice() {
    for (int i = 0; i < 4; ++i)
      weights.push_back(register_parameter(std::string("w").append(std::to_string(i)),
                                           torch::full({300}, 1.0 + i, torch::kDouble)));
  }
  torch::Tensor forward(const std::vector<int>& chosen, double factor = 1) {
    torch::Tensor sum = torch::zeros({}, torch::kDouble);
    for (const int i : chosen)
      sum = sum + factor * (i + 1) * weights[static_cast<std::size_t>(i)].sum();
    return sum;
  }

  std::vector<torch::Tensor> weights;
};

double gradient(const Choice& net, std::size_t i) {
  const torch::Tensor& all = net.weights[i].grad();
  EXPECT_TRUE(all.defined());
  EXPECT_TRUE(all.eq(all[0]).all().item<bool>());
  return all[0].item<double>();
}

void for_ranks(int ranks, Options options,
               const std::function<void(ProcessGroup&, const Options&)>& body) {
  for (const bool overlap : {false, true}) {
    options.overlap = overlap;
    run_in_process(ranks, [&](ProcessGroup& world) { body(world, options); });
  }
}

constexpr double one_weight_mb = 300 * 8 / 1024.0 / 1024.0;

TEST(Reducer, RanksMayUseDifferentParametersInEachPass) {
  const Options options{.find_unused_parameters = true, .bucket_cap_mb = one_weight_mb};
  for_ranks(3, options, [](ProcessGroup& world, const Options& given) {
    auto net = std::make_shared<Choice>();
    DistributedDataParallel ddp(net, world, given);
    EXPECT_EQ(ddp.stats().buckets, (BucketAssignment{{3}, {2}, {1}, {0}}));
    for (int step = 0; step < 6; ++step) {
      net->zero_grad();
      // Weight 0 by all, 1 by one rank, 2 in every other step, 3 never.
      std::vector<int> chosen{0};
      if (world.rank() == step % 3) chosen.push_back(1);
      if (step % 2 == 0) chosen.push_back(2);
      ddp(chosen).backward();
      EXPECT_DOUBLE_EQ(gradient(*net, 0), 1);
      EXPECT_DOUBLE_EQ(gradient(*net, 1), 2.0 / 3);
      EXPECT_EQ(net->weights[2].grad().defined(), step % 2 == 0);
      EXPECT_FALSE(net->weights[3].grad().defined());
    }
  });
}

TEST(Reducer, AGradientThatNoRankUsesKeepsItsValue) {
  const Options options{.find_unused_parameters = true};
  for_ranks(3, options, [](ProcessGroup& world, const Options& given) {
    auto net = std::make_shared<Choice>();
    DistributedDataParallel ddp(net, world, given);
    ddp(std::vector<int>{0, 1, 2, 3}, 0.1).backward();
    const torch::Tensor before = net->weights[3].grad().clone();
    ddp(world.rank() == 0 ? std::vector<int>{0, 1} : std::vector<int>{0}, 0.1).backward();
    EXPECT_TRUE(torch::equal(net->weights[3].grad(), before));
    EXPECT_DOUBLE_EQ(gradient(*net, 0), 0.2);
    EXPECT_DOUBLE_EQ(gradient(*net, 1), 0.2 + 0.2 / 3);
    ddp(std::vector<int>{3}, 0.1).backward();
    EXPECT_DOUBLE_EQ(gradient(*net, 3), 0.8);
  });
}

TEST(Reducer, KeepsNoSyncGradientsThatTheLastPassOmits) {
  for_ranks(2, {}, [](ProcessGroup& world, const Options& given) {
    auto net = std::make_shared<Choice>();
    DistributedDataParallel ddp(net, world, given);
    for (int window = 0; window < 3; ++window) {
      net->zero_grad();
      {
        const auto no_sync = ddp.no_sync();
        ddp(std::vector<int>{0, 1}, world.rank()).backward();
      }
      ddp(std::vector<int>{0, 2, 3}).backward();
      EXPECT_DOUBLE_EQ(gradient(*net, 0), 1.5);
      EXPECT_DOUBLE_EQ(gradient(*net, 1), 1);
      EXPECT_DOUBLE_EQ(gradient(*net, 3), 4);
    }
  });
}

TEST(Reducer, AMissingGradientOnOneRankIsNamedOnAll) {
  for_ranks(3, {.bucket_cap_mb = one_weight_mb}, [](ProcessGroup& world, const Options& given) {
    auto net = std::make_shared<Choice>();
    DistributedDataParallel ddp(net, world, given);
    ddp(std::vector<int>{0, 1, 2, 3}).backward();
    std::string text;
    const auto chosen = world.rank() == 1 ? std::vector<int>{0, 3} : std::vector<int>{0, 1, 2, 3};
    EXPECT_EQ(fault_of([&] { ddp(chosen).backward(); }, &text), Fault::misuse);
    EXPECT_NE(text.find("on rank 1 backward() gave no gradient to w1, w2:"), text.npos) << text;
    net->zero_grad();
    ddp(std::vector<int>{0, 1, 2, 3}).backward();
    EXPECT_DOUBLE_EQ(gradient(*net, 2), 3);
  });
}

TEST(Reducer, AStaticGraphMayLeaveTheSameParametersOutOfEveryPass) {
  for_ranks(2, {.static_graph = true, .bucket_cap_mb = one_weight_mb},
            [](ProcessGroup& world, const Options& given) {
              auto net = std::make_shared<Choice>();
              DistributedDataParallel ddp(net, world, given);
              const std::vector<int> chosen =
                  world.rank() == 0 ? std::vector<int>{2, 0, 1} : std::vector<int>{0, 1};
              for (int step = 0; step < 4; ++step) {
                net->zero_grad();
                ddp(chosen).backward();
                EXPECT_DOUBLE_EQ(gradient(*net, 1), 2);
                EXPECT_DOUBLE_EQ(gradient(*net, 2), 1.5);
                EXPECT_FALSE(net->weights[3].grad().defined());
              }
              EXPECT_EQ(ddp.stats().buckets.back(), (std::vector<std::size_t>{3}));
              std::string text;
              const auto other = [&] { ddp(std::vector<int>{0}).backward(); };
              EXPECT_EQ(fault_of(other, &text), Fault::misuse);
              EXPECT_NE(text.find("with static_graph, each pass must use the same"), text.npos);
            });
}

// A nested backward(), like checkpointing.
struct Recomputed : torch::autograd::Function<Recomputed> {
  using Part = std::function<torch::Tensor(const torch::Tensor&)>;

  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const Part& part) {
    const torch::NoGradGuard no_grad;
    context->save_for_backward({x});
    context->saved_data["part"] = reinterpret_cast<std::int64_t>(&part);
    return part(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto* part = reinterpret_cast<const Part*>(context->saved_data["part"].toInt());
    const torch::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    {
      const torch::AutoGradMode grad(true);
      torch::autograd::backward({(*part)(x)}, {gradients[0]});
    }
    return {x.grad(), torch::Tensor()};
  }
};

struct Checkpointed : torch::nn::Module {
  Checkpointed() {
    layer = register_module("layer", torch::nn::Linear(5, 5));
    head = register_module("head", torch::nn::Linear(5, 1));
    part = [this](const torch::Tensor& x) { return layer(x).tanh(); };
    const torch::NoGradGuard no_grad;  // Fixed values: threads share the generator.
    for (auto& weights : parameters())
      weights.copy_(torch::arange(weights.numel()).view(weights.sizes()).sin());
  }
  torch::Tensor forward(torch::Tensor x, bool recompute, int times = 2) {
    x = head(x.new_ones({1, 5})) * x;
    for (int i = 0; i < times; ++i) x = recompute ? Recomputed::apply(x, part) : part(x);
    return head(x).sum();
  }

  torch::nn::Linear layer{nullptr};
  torch::nn::Linear head{nullptr};
  Recomputed::Part part;
};

TEST(Reducer, AStaticGraphMayRecomputeALayerTwice) {
  for_ranks(2, {.static_graph = true}, [](ProcessGroup& world, const Options& given) {
    auto net = std::make_shared<Checkpointed>();
    auto plain = std::make_shared<Checkpointed>();
    DistributedDataParallel ddp(net, world, given);
    for (int step = 0; step < 4; ++step) {
      net->zero_grad();
      plain->zero_grad();
      const auto input = [&](int rank) { return torch::full({3, 5}, 0.1 * (rank + step)); };
      ddp(input(world.rank()), true).backward();
      for (int rank = 0; rank < 2; ++rank) (plain->forward(input(rank), false) / 2).backward();
      for (const auto& [name, expected] : named_parameters(*plain))
        EXPECT_TRUE(
            torch::allclose(net->named_parameters()[name].grad(), expected.grad(), 1e-5, 1e-6))
            << name << " in step " << step;
    }
  });
}

TEST(Reducer, WithoutStaticGraphALayerRecomputedTwiceIsNamed) {
  run_in_process(2, [](ProcessGroup& world) {
    auto net = std::make_shared<Checkpointed>();
    DistributedDataParallel ddp(net, world);
    std::string text;
    const auto twice = [&] { ddp(torch::ones({3, 5}), true).backward(); };
    EXPECT_EQ(fault_of(twice, &text), Fault::misuse);
    EXPECT_NE(text.find("layer."), text.npos) << text;
    EXPECT_NE(text.find("need static_graph"), text.npos) << text;
  });
}

TEST(Reducer, SeveralForwardPassesMayShareABackward) {
  for_ranks(2, {.bucket_cap_mb = one_weight_mb}, [](ProcessGroup& world, const Options& given) {
    auto net = std::make_shared<Choice>();
    DistributedDataParallel ddp(net, world, given);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      const auto first = ddp(std::vector<int>{0, 1, 2}, world.rank());
      const auto second = ddp(std::vector<int>{1, 2, 3});
      (first * second.detach() * 0 + first + second).backward();
      EXPECT_DOUBLE_EQ(gradient(*net, 0), 0.5);
      EXPECT_DOUBLE_EQ(gradient(*net, 1), 3);
      EXPECT_DOUBLE_EQ(gradient(*net, 3), 4);
    }
  });
}

TEST(Reducer, BucketsAreRebuiltInTheOrderOfRankZerosGradients) {
  for_ranks(2, {.bucket_cap_mb = 2 * one_weight_mb}, [](ProcessGroup& world, const Options& given) {
    auto net = std::make_shared<Choice>();
    DistributedDataParallel ddp(net, world, given);
    EXPECT_EQ(ddp.stats().buckets, (BucketAssignment{{0, 1, 2, 3}}));
    const auto order =
        world.rank() == 0 ? std::vector<int>{1, 3, 0, 2} : std::vector<int>{0, 1, 2, 3};
    for (int step = 0; step < 3; ++step) {
      if (step != 1) net->zero_grad();
      ddp(order, 1 + world.rank()).backward();
      EXPECT_DOUBLE_EQ(gradient(*net, 3), step == 1 ? 12 : 6);
      net->weights[3].mutable_grad().mul_(1);
    }
    EXPECT_EQ(ddp.stats().buckets, (BucketAssignment{{2, 0}, {3, 1}}));
  });
}

TEST(Reducer, BucketsAreTakenByTypeToo) {
  for_ranks(2, {}, [](ProcessGroup& world, const Options& given) {
    auto net = std::make_shared<Choice>();
    net->weights[1].set_data(net->weights[1].to(torch::kFloat));
    net->weights[2].set_data(net->weights[2].to(torch::kBFloat16));
    DistributedDataParallel ddp(net, world, given);
    EXPECT_EQ(ddp.stats().buckets.size(), 3U);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      ddp(std::vector<int>{0, 1, 2, 3}, world.rank()).backward();
      for (std::size_t i = 0; i < 4; ++i)
        EXPECT_DOUBLE_EQ(gradient(*net, i), (static_cast<double>(i) + 1) / 2);
    }
  });
}

TEST(Reducer, AGradientThatIsNotFiniteFailsOnAllRanksAndIsNamed) {
  const auto poison = [](Choice& net, double value) {
    net.weights[2].register_hook([value](const torch::Tensor& g) { return g * value; });
  };
  for (const double value : {std::numeric_limits<double>::infinity(), std::nan("")})
    for_ranks(3, {}, [&](ProcessGroup& world, const Options& given) {
      auto net = std::make_shared<Choice>();
      DistributedDataParallel ddp(net, world, given);
      if (world.rank() == 1) poison(*net, value);
      std::string text;
      EXPECT_EQ(fault_of(
                    [&] {
                      ddp(std::vector<int>{0, 1, 2, 3}).backward();
                    },
                    &text),
                Fault::corrupt);
      EXPECT_NE(text.find("the gradient of w2 on rank 1 is infinite or NaN"), text.npos) << text;
      ASSERT_TRUE(ddp.non_finite());
      EXPECT_EQ(ddp.non_finite()->rank, 1);
    });
}

TEST(Reducer, AGradientThatIsNotFiniteMayBeSkippedByAllRanksOrSpread) {
  set_log_sink([](LogLevel, std::string_view) {});
  for (const NonFinite choice : {NonFinite::skip, NonFinite::ignore})
    for (const int ranks : {1, 2})
      for_ranks(ranks, {.non_finite = choice}, [&](ProcessGroup& world, const Options& given) {
        auto net = std::make_shared<Choice>();
        DistributedDataParallel ddp(net, world, given);
        for (int step = 0; step < 3; ++step) {
          net->zero_grad();
          const bool bad = step == 1 && world.rank() == 0;
          ddp(std::vector<int>{0, 1, 2, 3}, bad ? std::nan("") : 1).backward();
          const bool skipped = step == 1 && choice == NonFinite::skip;
          EXPECT_EQ(ddp.non_finite().has_value(), skipped);
          for (std::size_t i = 0; i < 4; ++i) {
            ASSERT_EQ(net->weights[i].grad().defined(), !skipped);
            if (step != 1) {
              EXPECT_DOUBLE_EQ(gradient(*net, i), static_cast<double>(i) + 1);
            } else if (!skipped) {
              EXPECT_TRUE(net->weights[i].grad().isnan().all().item<bool>());
            }
          }
        }
      });
  set_log_sink({});
}

struct Lookup : torch::nn::Module {
  at::Tensor weight{register_parameter("weight", torch::ones({10, 3}))};

  at::Tensor forward(const at::Tensor& rows) {
    return torch::embedding(weight, rows, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false,
                            /*sparse=*/true);
  }
};

TEST(Reducer, UnexpectedSparseGradientsAreRefusedByName) {
  for_ranks(2, {}, [](ProcessGroup& world, const Options& given) {
    DistributedDataParallel ddp(std::make_shared<Lookup>(), world, given);
    std::string text;
    const auto pass = [&] { ddp(torch::tensor({1, 2})).sum().backward(); };
    EXPECT_EQ(fault_of(pass, &text), Fault::unsupported);
    EXPECT_NE(text.find("the gradient of parameter weight is sparse"), text.npos) << text;
  });
}

TEST(Reducer, ALayerThatIsRecomputedOnceNeedsNoStaticGraph) {
  for_ranks(2, {}, [](ProcessGroup& world, const Options& given) {
    auto net = std::make_shared<Checkpointed>();
    auto plain = std::make_shared<Checkpointed>();
    DistributedDataParallel ddp(net, world, given);
    const auto input = [](int rank) { return torch::full({3, 5}, 0.1 * (1 + rank)); };
    ddp(input(world.rank()), true, 1).backward();
    for (int rank = 0; rank < 2; ++rank) (plain->forward(input(rank), false, 1) / 2).backward();
    for (const auto& [name, expected] : named_parameters(*plain))
      EXPECT_TRUE(
          torch::allclose(net->named_parameters()[name].grad(), expected.grad(), 1e-5, 1e-6));
  });
}

// The parameters' gradients share memory with gradients that backward() has not read yet.
struct Added : torch::nn::Module {
  Added() {
    for (int i = 0; i < 3; ++i) {
      const auto numbers = torch::arange(600 * 300).view({600, 300});
      weights.push_back(register_parameter(std::string("w") + std::to_string(i),
                                           (numbers * (i + 1)).sin() * 0.02));
      const std::string name = std::string("p") + std::to_string(i);
      added.push_back(register_parameter(name, (numbers + i).cos() * 0.1));
    }
  }
  torch::Tensor forward(torch::Tensor x) {  // [1, 600, 300]
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const torch::Tensor h = torch::tanh(torch::matmul(x, weights[i].slice(0, 0, 300)));
      x = x + h;
      x = x + added[i].unsqueeze(0);
    }
    return x;
  }

  std::vector<torch::Tensor> weights;
  std::vector<torch::Tensor> added;
};

TEST(Reducer, AGradientThatSharesItsMemoryIsNotAveragedThere) {
  for_ranks(2, {.bucket_cap_mb = 0.5}, [](ProcessGroup& world, const Options& given) {
    const auto input = [](int rank) {
      return (torch::arange(600 * 300).view({1, 600, 300}) * (rank + 1)).sin();
    };
    auto net = std::make_shared<Added>();
    auto plain = std::make_shared<Added>();
    DistributedDataParallel ddp(net, world, given);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      ddp(input(world.rank())).pow(2).sum().backward();
    }
    for (int rank = 0; rank < 2; ++rank) (plain->forward(input(rank)).pow(2).sum() / 2).backward();
    for (const auto& [name, expected] : named_parameters(*plain)) {
      const torch::Tensor& ours = net->named_parameters()[name].grad();
      EXPECT_LE((ours - expected.grad()).norm().item<double>(),
                1e-4 * expected.grad().norm().item<double>())
          << name;
    }
  });
}

TEST(Reducer, AGradientOfSomethingElseIsNoPass) {
  for_ranks(2, {}, [](ProcessGroup& world, const Options& given) {
    auto net = std::make_shared<Checkpointed>();
    DistributedDataParallel ddp(net, world, given);
    const torch::Tensor x = torch::full({3, 5}, 0.1 * (1 + world.rank())).requires_grad_();
    const torch::Tensor out = ddp(x, false, 1);
    const auto slope = torch::autograd::grad({out}, {x}, {}, true, /*create_graph=*/true)[0];
    EXPECT_FALSE(net->head->weight.grad().defined());
    (out + slope.pow(2).sum()).backward();  // A gradient penalty.
    const torch::Tensor all = all_gather(net->head->weight.grad(), world);
    EXPECT_TRUE(torch::equal(all[0], all[1]));
  });
}

TEST(Reducer, AFrozenDiscriminatorLetsGradientsThroughToItsGenerator) {
  for_ranks(2, {}, [](ProcessGroup& world, const Options& given) {
    auto generator = std::make_shared<Checkpointed>();
    auto discriminator = std::make_shared<Checkpointed>();
    DistributedDataParallel g(generator, world, given);
    DistributedDataParallel d(discriminator, world, given);
    for (int step = 0; step < 3; ++step) {
      const torch::Tensor noise = torch::full({3, 5}, 0.1 * (1 + world.rank()));
      for (auto& parameter : discriminator->parameters()) parameter.set_requires_grad(false);
      d(g(noise, false, 1) * torch::ones({3, 5}), false, 1).backward();
      EXPECT_FALSE(discriminator->head->weight.grad().defined());
      for (auto& parameter : discriminator->parameters()) parameter.set_requires_grad(true);
      generator->zero_grad();
      d(g(noise, false, 1).detach() * torch::ones({3, 5}), false, 1).backward();
      EXPECT_TRUE(discriminator->head->weight.grad().defined());
      discriminator->zero_grad();
    }
  });
}

void throw_in_a_hook(Choice& net) {
  const auto armed = std::make_shared<bool>(true);
  net.weights[1].register_hook([armed](const torch::Tensor& gradient) {
    if (std::exchange(*armed, false)) throw std::runtime_error("the user's own");
    return gradient;
  });
}

// Rank 1 throws its own exception, others an Error that quotes it.
template <class Pass>
void expect_dropped_by_all(const ProcessGroup& world, Pass pass) {
  const auto begin = Clock::now();
  std::string text;
  if (world.rank() == 1) {
    EXPECT_THROW(pass(), std::runtime_error);
  } else {
    EXPECT_EQ(fault_of(pass, &text), Fault::aborted);
    EXPECT_NE(
        text.find("rank 1: backward() ended with an exception: std::runtime_error: the user's own"),
        text.npos)
        << text;
  }
  EXPECT_LT(seconds_since(begin), 4) << "not at once";  // After 5 s the group would be aborted.
}

TEST(Reducer, AnExceptionOnOneRankEndsThePassOfAllAtOnceWhoThenGoOn) {
  for (const bool overlap : {false, true})
    run_in_process(3, [&](ProcessGroup& world) {
      auto net = std::make_shared<Choice>();
      DistributedDataParallel ddp(net, world, {.bucket_cap_mb = 0.00001, .overlap = overlap});
      const auto pass = [&] { ddp(std::vector<int>{0, 1, 2, 3}).backward(); };
      pass();
      if (world.rank() == 1) throw_in_a_hook(*net);
      expect_dropped_by_all(world, pass);
      for (const auto& weight : net->weights) EXPECT_FALSE(weight.grad().defined());
      pass();
      EXPECT_DOUBLE_EQ(gradient(*net, 3), 4);
    });
}

struct Refusing : torch::autograd::Function<Refusing> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return x * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list) {
    throw std::runtime_error("the user's own");
  }
};

struct Refuser : torch::nn::Module {
  Refuser() : weight(register_parameter("weight", torch::ones(3))) {}
  torch::Tensor forward(bool refuses) {
    const torch::Tensor out = weight * 2;
    return (refuses ? Refusing::apply(out) : out).sum();
  }
  torch::Tensor weight;
};

TEST(Reducer, AnExceptionBeforeTheFirstGradientCountsLikeAnyOther) {
  run_in_process(2, [](ProcessGroup& world) {
    auto net = std::make_shared<Refuser>();
    DistributedDataParallel ddp(net, world);
    expect_dropped_by_all(world, [&] { ddp(world.rank() == 1).backward(); });
    ddp(false).backward();
    EXPECT_DOUBLE_EQ(net->weight.grad()[0].item<double>(), 2);
  });
}

// A `.grad` of another shape is refused after all gradients arrived.
TEST(Reducer, AnExceptionAfterTheLastGradientReachesTheOthersToo) {
  std::barrier both(2);  // Rank 0's first pass must not see that rank 1 aborts the group.
  const auto train = [&](ProcessGroup& world, bool overlap) {
    auto net = std::make_shared<Choice>();
    DistributedDataParallel ddp(net, world, {.find_unused_parameters = true, .overlap = overlap});
    const auto pass = [&] { ddp(std::vector<int>{0, 1}).backward(); };
    pass();
    both.arrive_and_wait();
    if (world.rank() == 1) net->weights[3].mutable_grad() = torch::zeros({7}, torch::kDouble);
    std::string text;
    EXPECT_EQ(fault_of(pass, &text), world.rank() == 1 ? Fault::misuse : Fault::aborted);
    EXPECT_NE(text.find("the gradient of parameter w3 has another shape"), text.npos) << text;
    if (world.rank() == 0) {
      EXPECT_NE(text.find("rank 1: a pass of DistributedDataParallel ended with"), text.npos)
          << text;
    }
  };
  run_in_process(2, [&](ProcessGroup& world) { train(world, true); });
  EXPECT_EQ(fault_of([&] { run_in_process(2, [&](ProcessGroup& world) { train(world, false); }); }),
            Fault::aborted);
}

TEST(Reducer, ReportsAnExceptionWhenBackwardUsesAnotherThreadThanForward) {
  run_in_process(2, [](ProcessGroup& world) {
    auto net = std::make_shared<Refuser>();
    DistributedDataParallel ddp(net, world);
    expect_dropped_by_all(world, [&] {
      const torch::Tensor loss = ddp(world.rank() == 1);
      std::async(std::launch::async, [&] { loss.backward(); }).get();
    });
  });
}

TEST(Reducer, GroupsAreAbortedUnlessTheAwaitedEventHappensInTime) {
  EXPECT_EQ(fault_of([] {
              run_in_process(2, [](ProcessGroup& world) {
                { const AbortLater in_time({world}, "too late", std::chrono::hours(1)); }
                world.barrier();
                std::string text;
                float value = 0;
                if (world.rank() == 1) {
                  const AbortLater late({world}, "too late", std::chrono::milliseconds(20));
                  EXPECT_EQ(fault_of([&] { world.recv({.data = &value, .count = 1}, 0); }),
                            Fault::aborted);
                } else {
                  EXPECT_EQ(fault_of([&] { world.barrier(); }, &text), Fault::aborted);
                  EXPECT_NE(text.find("too late"), text.npos) << text;
                }
              });
            }),
            Fault::aborted);
}

TEST(Reducer, OutputsOfAnyShapeAreWatched) {
  struct Own {
    torch::Tensor hidden;
  };
  std::vector<torch::Tensor> seen;
  auto visit = [&](const torch::Tensor& tensor) { seen.push_back(tensor); };
  const torch::Tensor a = torch::ones(1);
  visit_tensors(std::tuple(a, std::vector{a, a}, std::optional(std::pair(a, 3))), visit);
  EXPECT_EQ(seen.size(), 4U);
  visit_tensors(std::map<std::string, torch::Tensor>{{"x", a}, {"y", a}}, visit);
  EXPECT_EQ(seen.size(), 6U);
  visit_tensors(std::optional<torch::Tensor>(), visit);
  visit_tensors(Own{a}, visit);
  visit_tensors(std::string("text"), visit);
  EXPECT_EQ(seen.size(), 6U);
}

TEST(Reducer, OptionsThatDifferAreAMismatch) {
  const auto differ = [](ProcessGroup& world) {
    const Options options{.find_unused_parameters = world.rank() == 1};
    DistributedDataParallel(std::make_shared<Choice>(), world, options);
  };
  std::string text;
  EXPECT_EQ(fault_of([&] { run_in_process(2, differ); }, &text), Fault::mismatch);
  EXPECT_NE(text.find("rank 0 has find_unused_parameters false, rank 1 has"), text.npos) << text;
}

TEST(Reducer, TimesAddUp) {
  run_in_process(2, [](ProcessGroup& world) {
    DistributedDataParallel ddp(std::make_shared<Choice>(), world, {.overlap = false});
    ddp(std::vector<int>{0, 1, 2, 3}).backward();
    const BackwardTimes times = ddp.stats().times;
    EXPECT_GT(times.copy.count(), 0);
    EXPECT_GT(times.wait.count(), 0);
    EXPECT_GT(times.reduce.count(), 0);
  });
}

}  // namespace
}  // namespace lockstep::parallel::reducer_test
