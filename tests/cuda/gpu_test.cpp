// Collectives and training on this host's CUDA devices with NCCL; skipped without a device. The
// other files test order and arithmetic on simulated devices. This one tests that real devices
// agree.
//
// NCCL needs one device per rank, unless NCCL_MULTI_RANK_GPU_ENABLE=1 lets ranks share a device
// (NCCL 2.30). LOCKSTEP_TEST_GPU_RANKS is then the number of ranks that may run.
//
// Models are float64, so that results of CPU and device differ only by rounding. Adam amplifies
// this difference if a gradient is zero except for rounding, as for a bias before BatchNorm.

// SPDX-License-Identifier: Apache-2.0
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/tensor_dataset.h"
#include "lockstep/job/step_times.h"
#include "lockstep/nn/attention.h"
#include "lockstep/nn/layers.h"
#include "lockstep/optim/clip_grad_norm.h"
#include "lockstep/optim/mixed_precision.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/parallel/gradients/power_sgd.h"
#include "lockstep/parallel/local_steps/local_steps.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/parallel/tensor_parallel/parallelize_module.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/tensor_lists.h"
#include "lockstep/toolkit/average/averaged_model.h"
#include "lockstep/train/training_state.h"
#include "tests/cuda/net.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::gpu_test {
namespace {

using namespace test;
using namespace std::chrono_literals;

int gpus() {
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return 0;
  return c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount();
}

// Counted in a separate process: a test that initialises CUDA would hold device memory.
int most_ranks() {
  static const int count = [] {
    const char* const said = std::getenv("LOCKSTEP_TEST_GPU_RANKS");
    return said != nullptr ? std::atoi(said) : std::min(gpus(), 4);
  }();
  return count;
}

// Runs `ranks` as 1, 2 and 3 processes if there are enough devices.
void expect_success(const Ranks& ranks, int fewest = 1) {
  if (most_ranks() < fewest)
    GTEST_SKIP() << "needs " << fewest << " CUDA devices, and there are " << most_ranks();
  for (int count = fewest; count <= std::min(most_ranks(), 3); ++count)
    EXPECT_TRUE(all_succeeded(ranks.run(count, 120s))) << count << " ranks";
}

bool near(const torch::Tensor& a, const torch::Tensor& b, double tolerance = 1e-9) {
  return torch::allclose(a.detach().cpu().to(torch::kDouble), b.detach().cpu().to(torch::kDouble),
                         tolerance, tolerance);
}

// --- Collectives ---------------------------------------------------------------------------------

// Small integers, whose sums are exact in every type.
torch::Tensor numbers(std::int64_t count, int rank, at::ScalarType dtype) {
  return torch::arange(count).remainder(7).add(rank).to(dtype);
}

void check_collectives(const ProcessGroup& group, std::int64_t rows, at::ScalarType dtype) {
  const at::Device device = local_device(group);
  const std::int64_t count = rows * group.size();
  const torch::Tensor here = numbers(count, group.rank(), dtype);
  const torch::Tensor there = here.to(device);
  const auto expect_equal = [&](const torch::Tensor& cpu, const torch::Tensor& cuda,
                                const char* what) {
    EXPECT_TRUE(cuda.is_cuda());
    EXPECT_TRUE(torch::equal(cpu, cuda.cpu()))
        << what << " of " << count << ' ' << c10::toString(dtype);
  };
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
    const torch::Tensor a = here.clone(), b = there.clone();
    all_reduce(a, group, op);
    all_reduce(b, group, op);
    expect_equal(a, b, "all_reduce");
    expect_equal(reduce_scatter(here, group, op), reduce_scatter(there, group, op),
                 "reduce_scatter");
  }
  const int root = group.size() - 1;
  const torch::Tensor a = here.clone(), b = there.clone();
  broadcast(a, group, root);
  broadcast(b, group, root);
  expect_equal(a, b, "broadcast");
  reduce(a, group, root);
  reduce(b, group, root);
  if (group.rank() == root) expect_equal(a, b, "reduce");
  expect_equal(all_gather(here, group), all_gather(there, group), "all_gather");
  expect_equal(all_to_all(here, group), all_to_all(there, group), "all_to_all");
  const torch::Tensor some = here.slice(0, 0, group.rank() * rows);
  expect_equal(torch::cat(all_gather_uneven(some, group)),
               torch::cat(all_gather_uneven(some.to(device), group)), "all_gather_uneven");
}

const Ranks collectives("gpu collectives", [](const Rank&) {
  ProcessGroup group = init_process_group();
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16,
                           torch::kInt, torch::kLong, torch::kByte})
    for (const std::int64_t rows : {0, 1, 1001}) check_collectives(group, rows, dtype);
  check_collectives(group, 1 << 20, torch::kFloat);
  destroy_process_group(group);
});
TEST(Gpu, CollectivesGiveWhatTheCpusGive) { expect_success(collectives); }

// Enqueued after slow kernels: a collective that starts before its inputs exist gives a wrong
// result.
const Ranks streams("gpu streams", [](const Rank&) {
  ProcessGroup group = init_process_group();
  const at::Device device = local_device(group);
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  const c10::StreamGuard on(guard.getStreamFromGlobalPool(device, false));
  const torch::Tensor big =
      torch::full({3000, 3000}, 1e-3, torch::dtype(torch::kFloat).device(device));
  for (int i = 0; i < 5; ++i) {
    torch::Tensor slow = big;
    for (int k = 0; k < 10; ++k) slow = slow.mm(big);
    const torch::Tensor value = slow.mul(0).add(group.rank() + i).narrow(0, 0, 500);
    Work work = all_reduce_async(value, group, ReduceOp::sum);
    work.wait();
    const int n = group.size();
    EXPECT_TRUE(value.eq(n * (n - 1) / 2 + n * i).all().item<bool>()) << i;
  }
  destroy_process_group(group);
});
TEST(Gpu, CollectivesFollowTheCallersStream) { expect_success(streams); }

const Ranks refusals("gpu refusals", [](const Rank&) {
  ProcessGroup group = init_process_group();
  const torch::Tensor tensor =
      torch::ones({4}, torch::dtype(torch::kInt).device(local_device(group)));
  EXPECT_EQ(fault_of([&] { all_reduce(tensor, group, ReduceOp::bor); }), Fault::unsupported);
  EXPECT_EQ(fault_of([&] { send(tensor, group, 0); }), Fault::unsupported);
  all_reduce(tensor, group);  // The group is still usable.
  EXPECT_TRUE(tensor.eq(group.size()).all().item<bool>());
  destroy_process_group(group);
});
TEST(Gpu, RefusalsLeaveTheGroupAsItWas) { expect_success(refusals); }

const Ranks differing("gpu shapes that differ", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  const torch::Tensor tensor = torch::ones({4 + rank.rank}, local_device(group));
  std::string text;
  EXPECT_EQ(fault_of([&] { all_reduce(tensor, group); }, &text), Fault::mismatch);
  EXPECT_NE(text.find("Float 5"), text.npos) << text;
});
TEST(Gpu, ShapesThatDifferAreAMismatchOnAllRanks) { expect_success(differing, 2); }

const Ranks lost("gpu lost rank", [](const Rank& rank) {
  ProcessGroup group = init_process_group({.timeout = 30s});
  const torch::Tensor tensor = torch::ones({1 << 20}, local_device(group));
  all_reduce(tensor, group);
  if (rank.rank == 1) ::kill(::getpid(), SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  std::string text;
  const Fault fault = fault_of(
      [&] {
        all_reduce(tensor, group);
        tensor.sum().item<float>();
      },
      &text);
  EXPECT_EQ(fault, Fault::peer_lost) << text;
  EXPECT_NE(text.find("rank 1"), text.npos) << text;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
});
TEST(Gpu, ALostRankIsNamed) {
  if (most_ranks() < 2) GTEST_SKIP() << "needs 2 CUDA devices";
  const std::vector<Exit> exits = lost.run(2, 120s);
  EXPECT_EQ(exits[0].code, 0) << exits[0].output;
  EXPECT_EQ(exits[1].signal, SIGKILL) << exits[1].output;
}

const Ranks stopped("gpu rank that does not come", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  const torch::Tensor tensor = torch::ones({1 << 20}, local_device(group));
  all_reduce(tensor, group);
  tensor.cpu();
  if (rank.rank == 1) std::this_thread::sleep_for(3s);
  std::string text;
  const Fault fault =
      fault_of([&] { all_reduce(tensor, group, ReduceOp::sum, {.timeout = 1s}); }, &text);
  EXPECT_EQ(fault, Fault::timeout) << text;
});
TEST(Gpu, ARankThatDoesNotComeIsATimeout) { expect_success(stopped, 2); }

// --- Training ------------------------------------------------------------------------------------

using Ddp = DistributedDataParallel<Net>;
using Values = std::vector<torch::Tensor>;

Values values_of(const torch::nn::Module& module) {
  Values all;
  for (const auto& parameter : module.parameters()) all.push_back(parameter.detach().cpu());
  for (const auto& buffer : module.buffers()) all.push_back(buffer.cpu());
  return all;
}

void expect_near(const Values& cpu, const Values& cuda, const std::string& what,
                 double tolerance = 1e-6) {
  ASSERT_EQ(cpu.size(), cuda.size());
  for (std::size_t i = 0; i < cpu.size(); ++i)
    EXPECT_TRUE(near(cpu[i], cuda[i], tolerance))
        << what << ", tensor " << i << ": by "
        << (cpu[i].to(torch::kDouble) - cuda[i].to(torch::kDouble)).abs().max().item<double>();
}

std::shared_ptr<Net> net_on(at::Device device) {
  auto net = std::make_shared<Net>();
  net->to(device, torch::kDouble);
  return net;
}

torch::Tensor batch(int rank, int step, at::Device device) {
  return inputs(rank, step, at::kCPU).to(device, torch::kDouble);
}

// Trains on both devices with the same calls.
using Training = std::function<Values(ProcessGroup&, at::Device)>;
void compare(ProcessGroup& group, const std::string& what, const Training& train) {
  const Values cpu = train(group, at::kCPU);
  expect_near(cpu, train(group, local_device(group)), what);
}

Values trained(ProcessGroup& group, at::Device device,
               const DistributedDataParallelOptions& options,
               const std::function<void(Ddp&)>& prepare = {}) {
  const auto net = net_on(device);
  Ddp ddp(net, group, options);
  if (prepare) prepare(ddp);
  AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 6; ++step) {
    adamw.zero_grad();
    for (const int part : {0, 1}) {
      const auto alone = ddp.no_sync(part == 0);
      const bool with_extra = !options.find_unused_parameters || step % 2 == 0;
      ddp(batch(group.rank(), 2 * step + part, device), with_extra).pow(2).mean().backward();
    }
    adamw.step();
  }
  return values_of(*net);
}

const Ranks ddp_trains("gpu ddp", [](const Rank&) {
  ProcessGroup group = init_process_group();
  for (const bool overlap : {false, true})
    for (const double bucket_cap_mb : {0.01, 25.0})
      compare(group, overlap ? "overlapped" : "not overlapped",
              [&](ProcessGroup& ranks, at::Device device) {
                return trained(ranks, device, {.bucket_cap_mb = bucket_cap_mb, .overlap = overlap});
              });
  compare(group, "unused", [&](ProcessGroup& ranks, at::Device device) {
    return trained(ranks, device, {.find_unused_parameters = true});
  });
  compare(group, "static graph", [&](ProcessGroup& ranks, at::Device device) {
    return trained(ranks, device, {.static_graph = true});
  });
  destroy_process_group(group);
});
TEST(Gpu, DistributedDataParallelTrainsAsOnTheCpu) { expect_success(ddp_trains); }

const Ranks alone("gpu one rank", [](const Rank&) {
  ProcessGroup group = init_process_group();
  const at::Device device = local_device(group);
  const auto run = [&](bool with_ddp) {
    const auto net = std::make_shared<Net>();
    net->to(device);
    std::unique_ptr<Ddp> ddp;
    if (with_ddp) ddp = std::make_unique<Ddp>(net, group);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 10; ++step) {
      sgd.zero_grad();
      const torch::Tensor x = inputs(0, step, device);
      (with_ddp ? (*ddp)(x) : net->forward(x)).pow(2).mean().backward();
      sgd.step();
    }
    return values_of(*net);
  };
  const Values expected = run(false), actual = run(true);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(torch::equal(expected[i], actual[i])) << i;
  destroy_process_group(group);
});
TEST(Gpu, OneRankHasTheBitsOfNoDistributedDataParallel) {
  if (most_ranks() < 1) GTEST_SKIP() << "there is no CUDA device here";
  EXPECT_TRUE(all_succeeded(alone.run(1, 120s)));
}

const Ranks compressed("gpu compressed", [](const Rank&) {
  ProcessGroup group = init_process_group();
  const at::Device device = local_device(group);
  const auto with = [&](const CommunicationHook& hook, const std::string& what, double tolerance) {
    const auto run = [&](at::Device where) {
      return trained(group, where, {}, [&](Ddp& ddp) { ddp.register_comm_hook(hook); });
    };
    expect_near(run(at::kCPU), run(device), what, tolerance);
  };
  with(bf16_compress_hook(), "bf16", 2e-2);
  with(fp16_compress_hook(), "fp16", 2e-3);
  const auto run = [&](at::Device where) {
    PowerSGD power(group, {.matrix_approximation_rank = 2, .start_step = 2});
    return trained(group, where, {}, [&](Ddp& ddp) { ddp.register_comm_hook(power.hook()); });
  };
  expect_near(run(at::kCPU), run(device), "PowerSGD", 1e-6);
  destroy_process_group(group);
});
TEST(Gpu, CompressedGradientsTrainAsOnTheCpu) { expect_success(compressed); }

const Ranks not_finite("gpu not finite", [](const Rank&) {
  ProcessGroup group = init_process_group();
  const at::Device device = local_device(group);
  const int culprit = group.size() - 1;
  const double factor = group.rank() == culprit ? INFINITY : 1.0;
  {
    const auto net = net_on(device);
    Ddp ddp(net, group, {.non_finite = NonFinite::skip});
    ddp(batch(group.rank(), 0, device)).pow(2).mean().mul(factor).backward();
    EXPECT_FALSE(net->b->bias.grad().defined() && net->b->bias.grad().ne(0).any().item<bool>());
    ddp(batch(group.rank(), 0, device)).pow(2).mean().backward();
    EXPECT_TRUE(net->b->bias.grad().isfinite().all().item<bool>());
  }
  const auto net = net_on(device);
  Ddp ddp(net, group);
  std::string text;
  EXPECT_EQ(
      fault_of([&] { ddp(batch(group.rank(), 0, device)).pow(2).mean().mul(factor).backward(); },
               &text),
      Fault::corrupt);
  EXPECT_NE(text.find("rank " + std::to_string(culprit)), text.npos) << text;
});
TEST(Gpu, GradientsThatAreNotFiniteAreFound) { expect_success(not_finite); }

const Ranks sharded("gpu sharded optimizer", [](const Rank&) {
  ProcessGroup group = init_process_group();
  compare(group, "ZeRO", [](ProcessGroup& ranks, at::Device device) {
    const auto net = net_on(device);
    Ddp ddp(net, ranks);
    ZeroRedundancyOptimizer<Adam> adam(net->parameters(), ranks, torch::optim::AdamOptions(1e-2));
    for (int step = 0; step < 5; ++step) {
      adam.zero_grad();
      ddp(batch(ranks.rank(), step, device)).pow(2).mean().backward();
      clip_grad_norm_(net->parameters(), 0.5);
      adam.step();
    }
    return values_of(*net);
  });
  destroy_process_group(group);
});
TEST(Gpu, ZeroRedundancyOptimizerTrainsAsOnTheCpu) { expect_success(sharded); }

const Ranks offloaded("gpu offload", [](const Rank&) {
  ProcessGroup group = init_process_group();
  const auto step_all = [&](auto& model, auto& adam, at::Device device) {
    for (int step = 0; step < 5; ++step) {
      adam.zero_grad();
      model(batch(group.rank(), step, device)).pow(2).mean().backward();
      adam.step();
    }
  };
  const auto replica = net_on(at::kCPU);
  Ddp ddp(replica, group);
  Adam adam(replica->parameters(), torch::optim::AdamOptions(1e-2));
  step_all(ddp, adam, at::kCPU);
  for (const std::size_t resident : {1U, 4U}) {
    const auto net = net_on(at::kCPU);
    const at::Device device = local_device(group);
    FullyShardedDataParallel fsdp(
        net, group, {.units = {"a", "b", "extra"}, .resident_units = resident, .offload = device});
    FullyShardedOptimizer<Adam> sharded_adam(fsdp, net->parameters(),
                                             torch::optim::AdamOptions(1e-2));
    step_all(fsdp, sharded_adam, device);
    Values values;
    fsdp.with_gathered([&] { values = values_of(*net); });
    expect_near(values_of(*replica), values, "offload");
  }
  destroy_process_group(group);
});
TEST(Gpu, OffloadedModulesTrainAsOnTheCpu) { expect_success(offloaded); }

const Ranks averaged("gpu averaged", [](const Rank&) {
  ProcessGroup group = init_process_group();
  compare(group, "DiLoCo", [](ProcessGroup& ranks, at::Device device) {
    const auto net = net_on(device);
    AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
    DiLoCo diloco(*net, adamw, ranks, {.sync_every = 2});
    for (int step = 0; step < 6; ++step) {
      adamw.zero_grad();
      net->forward(batch(ranks.rank(), step, device)).pow(2).mean().backward();
      adamw.step();
      diloco.step();
    }
    return values_of(*net);
  });
  destroy_process_group(group);
});
TEST(Gpu, LocalStepsTrainAsOnTheCpu) { expect_success(averaged); }

// In half precision, a convolutional network reaches the result of single precision.
struct Classifier : torch::nn::Module {
  Classifier() { register_module("layers", layers); }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers{torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)),
                               torch::nn::ReLU(),
                               torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 16, 3).stride(2)),
                               torch::nn::ReLU(),
                               torch::nn::Flatten(),
                               torch::nn::Linear(16 * 5 * 5, 10)};
};

struct Learned {
  double loss;
  double scale;
};

Learned learned(ProcessGroup& group, std::optional<at::ScalarType> dtype, bool overflow) {
  const at::Device device = local_device(group);
  torch::manual_seed(7);
  auto net = std::make_shared<Classifier>();
  const torch::Tensor x = torch::rand({64, 1, 12, 12}), y = torch::randint(10, {64});
  net->to(device);
  DistributedDataParallel<Classifier> ddp(net, group, {.non_finite = NonFinite::ignore});
  AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
  GradScaler scaler(ProcessGroup::self(), {.init_scale = 1024, .enabled = dtype == torch::kHalf});
  double last = 0;
  for (int step = 0; step < 60; ++step) {
    adamw.zero_grad();
    torch::Tensor loss;
    {
      const Autocast amp(torch::kCUDA, dtype.value_or(torch::kHalf), dtype.has_value());
      const torch::Tensor logits = ddp(x.to(device));
      EXPECT_EQ(logits.scalar_type(), dtype.value_or(torch::kFloat));
      loss = torch::nn::functional::cross_entropy(logits.to(torch::kFloat), y.to(device));
    }
    if (overflow && step == 3 && group.rank() == group.size() - 1) loss = loss * INFINITY;
    scaler.scale(loss).backward();
    const bool stepped = scaler.step(adamw);
    EXPECT_EQ(stepped, !(overflow && step == 3)) << step;
    scaler.update();
    last = loss.item<double>();
  }
  return {last, scaler.get_scale()};
}

const Ranks half_precision("gpu half precision", [](const Rank&) {
  ProcessGroup group = init_process_group();
  const double expected = learned(group, std::nullopt, false).loss;
  for (const auto dtype : {torch::kBFloat16, torch::kHalf})
    EXPECT_NEAR(learned(group, dtype, false).loss, expected, 0.1 * expected) << dtype;
  EXPECT_EQ(learned(group, torch::kHalf, true).scale, 512) << "halved on all ranks";
  destroy_process_group(group);
});
TEST(Gpu, HalfPrecisionLearnsAsSinglePrecision) { expect_success(half_precision); }

// --- Layers cut over ranks -----------------------------------------------------------------------

const Ranks context_parallel("gpu ulysses", [](const Rank&) {
  ProcessGroup group = init_process_group();
  const at::Device device = local_device(group);
  torch::manual_seed(3);
  const std::int64_t heads = 2 * group.size(), length = 8 * group.size();
  const auto order = nn::SequenceOrder::head_tail;
  const torch::Tensor q = torch::rand({2, heads, length, 16}, torch::kDouble),
                      k = torch::rand_like(q), v = torch::rand_like(q);
  const torch::Tensor expected = nn::scaled_dot_product_attention(q, k, v, {.is_causal = true});
  const auto part = [&](const torch::Tensor& x) {
    return nn::sequence_part(x.to(device), 2, group, order);
  };
  const torch::Tensor mine = part(q).requires_grad_();
  const torch::Tensor y = nn::scaled_dot_product_attention(
      mine, part(k), part(v), {.context = group, .is_causal = true, .order = order});
  EXPECT_TRUE(near(part(expected), y));
  y.sum().backward();
  EXPECT_TRUE(mine.grad().isfinite().all().item<bool>());
  destroy_process_group(group);
});
TEST(Gpu, AttentionOverPartsOfASequenceIsThatOfTheWhole) { expect_success(context_parallel); }

struct Mlp : torch::nn::Module {
  Mlp() {
    register_module("in", in);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(in(x).tanh()); }
  nn::Linear in{12, 24};
  nn::Linear out{24, 6};
};

const Ranks tensor_parallel("gpu tensor parallel", [](const Rank&) {
  ProcessGroup group = init_process_group();
  const at::Device device = local_device(group);
  const auto make = [&] {
    torch::manual_seed(5);
    auto mlp = std::make_shared<Mlp>();
    mlp->to(device, torch::kDouble);
    return mlp;
  };
  const auto whole = make(), cut = make();
  parallelize_module(*cut, group, {{"in", ColwiseParallel()}, {"out", RowwiseParallel()}});
  const torch::Tensor x = torch::arange(60, torch::kDouble).view({5, 12}).sin().to(device);
  const torch::Tensor a = x.clone().requires_grad_(), b = x.clone().requires_grad_();
  const torch::Tensor expected = whole->forward(a), actual = cut->forward(b);
  EXPECT_TRUE(near(expected, actual));
  expected.pow(2).sum().backward();
  actual.pow(2).sum().backward();
  EXPECT_TRUE(near(a.grad(), b.grad()));
  destroy_process_group(group);
});
TEST(Gpu, TensorParallelLayersAreTheWholeOnes) { expect_success(tensor_parallel); }

// --- Data and checkpoints ------------------------------------------------------------------------

const Ranks loader("gpu loader", [](const Rank&) {
  ProcessGroup group = init_process_group();
  const at::Device device = local_device(group);
  const torch::Tensor data = torch::rand({400, 3, 8, 8}), target = torch::arange(400);
  const TensorDataset dataset(data, target);
  DistributedSampler sampler(400, group.size(), group.rank());
  DataLoader batches(dataset, sampler,
                     {.batch_size = 16,
                      .threads = 3,
                      .memory_format = torch::MemoryFormat::ChannelsLast,
                      .device = device});
  std::int64_t seen = 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    sampler.set_epoch(epoch);
    for (const Batch& each : batches) {
      EXPECT_EQ(each.data.device(), device);
      EXPECT_TRUE(each.data.is_contiguous(torch::MemoryFormat::ChannelsLast));
      const torch::Tensor rows = each.target.cpu();
      EXPECT_TRUE(torch::equal(each.data.cpu(), data.index_select(0, rows)));
      seen += rows.numel();
    }
  }
  EXPECT_GE(seen, 3 * 400 / group.size());
  destroy_process_group(group);
});
TEST(Gpu, LoaderBringsBatchesToTheDevice) { expect_success(loader); }

const Ranks checkpoints("gpu checkpoint", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  const at::Device device = local_device(group);
  const auto run = [&](int first, int last, bool resume) {
    const auto net = net_on(device);
    Ddp ddp(net, group);
    AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
    TrainingState state;
    state.add("net", ddp);
    state.add("adamw", adamw, *net);
    Checkpointer saved(rank.scratch / "run", group);
    if (resume) {
      EXPECT_TRUE(saved.resume(state).has_value());
    }
    for (int step = first; step < last; ++step) {
      adamw.zero_grad();
      ddp(batch(group.rank(), step, device)).pow(2).mean().backward();
      adamw.step();
    }
    if (!resume && last == 3) saved.save(3, state);
    saved.wait();
    return values_of(*net);
  };
  const Values expected = run(0, 6, false);
  run(0, 3, false);
  const Values actual = run(3, 6, true);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(torch::equal(expected[i], actual[i])) << i;
  destroy_process_group(group);
});
TEST(Gpu, TrainingResumesBitForBit) { expect_success(checkpoints); }

const Ranks times("gpu step times", [](const Rank&) {
  ProcessGroup group = init_process_group();
  const StepTimes before = step_times();
  trained(group, local_device(group), {});
  const StepTimes spent = step_times() - before;
  EXPECT_EQ(spent.steps, 6);
  EXPECT_GT(spent[StepPhase::backward].count(), 0);
  destroy_process_group(group);
});
TEST(Gpu, StepsAreTimed) { expect_success(times); }

}  // namespace
}  // namespace lockstep::gpu_test
