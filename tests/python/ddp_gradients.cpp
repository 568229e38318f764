// Which gradients exist, and how they are reduced.

// SPDX-License-Identifier: Apache-2.0
#include "examples/models/cnn.h"
#include "tests/python/ddp_scenarios.h"
#include "tests/python/ddp_training.h"

namespace {

using lockstep::DistributedDataParallel;

void small_buckets(Rig& rig) { train_with_sgd(rig, mlp(rig), rig.options()); }

void default_buckets(Rig& rig) {
  auto options = rig.options();
  options.bucket_cap_mb.reset();
  train_with_sgd(rig, mlp(rig), options);
}

void bucket_list(Rig& rig) {
  auto options = rig.options();
  options.bucket_cap_mb.reset();
  options.bucket_caps_mb = {0.0005, 0.004, 0.001};
  train_with_sgd(rig, mlp(rig), options);
}

void in_double(Rig& rig) {
  const auto net = mlp(rig);
  net->to(torch::kDouble);
  train_with_sgd(rig, net, rig.options());
}

void sampled_cnn(Rig& rig) {
  constexpr std::size_t batch = 4;
  const torch::Tensor& images = rig.input("images");
  const auto net = rig.load("Cnn", std::make_shared<Cnn>(1, 8, 10));
  auto options = rig.options();
  options.bucket_cap_mb.reset();
  DistributedDataParallel ddp(net, rig.world(), options);
  auto optimizer = sgd(*net);
  lockstep::DistributedSampler sampler(static_cast<std::size_t>(images.size(0)), rig.world(),
                                       {.seed = 5});
  sampler.reset();
  for (std::size_t step = 0; step < steps; ++step) {
    const auto drawn = sampler.next(batch).value();
    const auto indices =
        torch::tensor(std::vector<std::int64_t>(drawn.begin(), drawn.end()), torch::kLong);
    optimizer.zero_grad();
    rig.loss(ddp(images.index_select(0, indices)), rig.input("targets").index_select(0, indices))
        .backward();
    optimizer.step();
  }
  rig.record_all(ddp);
}

// Compares only buckets of the default size, and no weights.
void large_mlp(Rig& rig) {
  auto options = rig.options();
  options.bucket_cap_mb.reset();
  DistributedDataParallel ddp(std::make_shared<Mlp>(784, 512, 10), rig.world(), options);
  for (int step = 0; step < 3; ++step) ddp(torch::ones({2, 784})).sum().backward();
  rig.record_buckets(ddp);
}

void accumulate(Rig& rig, bool set_to_none) {
  const auto net = mlp(rig);
  DistributedDataParallel ddp(net, rig.world(), rig.options());
  auto optimizer = sgd(*net);
  for (std::size_t step = 0; step < steps; ++step) {
    const auto xs = rig.x(step).chunk(3);
    const auto ys = rig.y(step).chunk(3);
    optimizer.zero_grad(set_to_none);
    {
      const auto alone = ddp.no_sync();
      for (std::size_t i : {0, 1}) rig.loss(ddp(xs[i]), ys[i]).backward();
    }
    rig.loss(ddp(xs[2]), ys[2]).backward();
    optimizer.step();
  }
  rig.record_all(ddp);
}

void accumulation(Rig& rig) { accumulate(rig, /*set_to_none=*/true); }
void accumulation_onto_zeros(Rig& rig) { accumulate(rig, /*set_to_none=*/false); }

void adam(Rig& rig) {
  const auto net = mlp(rig);
  DistributedDataParallel ddp(net, rig.world(), rig.options());
  lockstep::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01).weight_decay(0.1));
  train(rig, ddp, optimizer);
  rig.record_all(ddp);
}

void tied(Rig& rig) {
  train_with_sgd(rig, rig.load("Tied", std::make_shared<Tied>()), rig.options());
}

void mixed_types(Rig& rig) {
  train_with_sgd(rig, rig.load("Mixed", std::make_shared<Mixed>()), rig.options());
}

void complex_parameter(Rig& rig) {
  train_with_sgd(rig, std::make_shared<Complex>(0.3 / (1 + rig.world().rank())), rig.options());
}

// Trains two models with a common first layer, each with a DistributedDataParallel.
void train_with_common_layer(Rig& rig, bool together) {
  const auto a = mlp(rig);
  const auto b = mlp(rig);
  b->linear1 = b->replace_module("linear1", a->linear1);
  DistributedDataParallel ddp_a(a, rig.world(), rig.options());
  DistributedDataParallel ddp_b(b, rig.world(), rig.options());
  auto optimizer = sgd(torch::nn::ModuleListImpl(a, b));
  for (std::size_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    auto first = rig.loss(ddp_a(rig.x(step)), step);
    if (!together) first.backward();
    const auto second = rig.loss(ddp_b(rig.x(steps - 1 - step)), steps - 1 - step);
    (together ? first + second : second).backward();
    optimizer.step();
  }
  rig.record_tensors(*a, "a.");
  rig.record_tensors(*b, "b.");
  rig.record_losses();
}

void common_layer(Rig& rig) { train_with_common_layer(rig, /*together=*/true); }
void common_layer_in_turns(Rig& rig) { train_with_common_layer(rig, /*together=*/false); }

void frozen(Rig& rig) {
  const auto net = mlp(rig);
  net->linear1->bias.requires_grad_(false);
  net->linear2->weight.requires_grad_(false);
  train_with_sgd(rig, net, rig.options());
}

void several_forwards(Rig& rig) {
  const auto net = mlp(rig);
  DistributedDataParallel ddp(net, rig.world(), rig.options());
  auto optimizer = sgd(*net);
  for (std::size_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const auto first = rig.loss(ddp(rig.x(step)), step);
    const auto second = rig.loss(ddp(rig.x(steps - 1 - step)), steps - 1 - step);
    (first + second).backward();
    optimizer.step();
  }
  rig.record_all(ddp);
}

void train_with_hook(Rig& rig, lockstep::CommunicationHook hook,
                     const lockstep::DistributedDataParallelOptions& options) {
  const auto net = mlp(rig);
  DistributedDataParallel ddp(net, rig.world(), options);
  ddp.register_comm_hook(std::move(hook));
  auto optimizer = sgd(*net);
  train(rig, ddp, optimizer);
  rig.record_all(ddp);
}

void fp16_hook(Rig& rig) { train_with_hook(rig, lockstep::fp16_compress_hook(), rig.options()); }
void bf16_hook(Rig& rig) { train_with_hook(rig, lockstep::bf16_compress_hook(), rig.options()); }

// In one bucket.
void train_with_power_sgd(Rig& rig, const lockstep::PowerSGDOptions& power_options) {
  const lockstep::PowerSGD power(rig.world(), power_options);
  auto options = rig.options();
  options.bucket_cap_mb.reset();
  train_with_hook(rig, power.hook(), options);
}

void power_sgd(Rig& rig) { train_with_power_sgd(rig, {.start_step = 3}); }

void power_sgd_of_rank_4(Rig& rig) {
  train_with_power_sgd(
      rig,
      {.matrix_approximation_rank = 4, .start_step = 3, .batch_tensors_with_same_shape = true});
}

void power_sgd_from_cold(Rig& rig) {
  train_with_power_sgd(rig, {.matrix_approximation_rank = 2,
                             .start_step = 3,
                             .warm_start = false,
                             .orthogonalization_epsilon = 1e-8,
                             .random_seed = 5});
}

void power_sgd_in_buckets(Rig& rig) {
  const lockstep::PowerSGD power(rig.world(), {.start_step = 3});
  train_with_hook(rig, power.hook(), rig.options());
}

// Each rank steps alone after the warm-up.
void post_local_sgd(Rig& rig) {
  const auto net = mlp(rig);
  DistributedDataParallel ddp(net, rig.world(), rig.options());
  auto optimizer = sgd(*net);
  lockstep::LocalSGD local(
      *net, optimizer, rig.world(),
      {.period = 3, .warmup_steps = 4, .subgroup = rig.world().split(rig.world().rank())});
  ddp.register_comm_hook(local.hook());
  for (std::size_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    rig.loss(ddp(rig.x(step)), step).backward();
    optimizer.step();
    local.step();
  }
  rig.record_all(ddp);
}

void gradient_views(Rig& rig) {
  auto options = rig.options();
  options.gradient_as_bucket_view = true;
  train_with_sgd(rig, mlp(rig), options);
}

// The sum of two losses' gradients, of which the first are kept across zero_grad(), as in PCGrad.
void kept_gradients(Rig& rig) {
  const auto net = mlp(rig);
  DistributedDataParallel ddp(net, rig.world(), rig.options());
  auto optimizer = sgd(*net);
  for (std::size_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    rig.loss(ddp(rig.x(step)), step).backward();
    std::vector<torch::Tensor> kept;
    for (const auto& parameter : net->parameters()) kept.push_back(parameter.grad());
    optimizer.zero_grad();
    rig.loss(ddp(rig.x(steps - 1 - step)), steps - 1 - step).backward();
    const auto parameters = net->parameters();
    for (std::size_t i = 0; i < kept.size(); ++i) parameters[i].mutable_grad().add_(kept[i]);
    optimizer.step();
  }
  rig.record_all(ddp);
}

void gradients_by_set_data(Rig& rig, bool as_views) {
  const auto net = mlp(rig);
  auto options = rig.options();
  options.gradient_as_bucket_view = as_views;
  DistributedDataParallel ddp(net, rig.world(), options);
  auto optimizer = sgd(*net);
  for (std::size_t step = 0; step < steps; ++step) {
    optimizer.zero_grad(/*set_to_none=*/false);
    rig.loss(ddp(rig.x(step)), step).backward();
    optimizer.step();
    for (const auto& parameter : net->parameters())
      parameter.mutable_grad().set_data(parameter.grad().clone());
  }
  rig.record_all(ddp);
}

void set_data_on_gradients(Rig& rig) { gradients_by_set_data(rig, /*as_views=*/false); }
void set_data_on_gradient_views(Rig& rig) { gradients_by_set_data(rig, /*as_views=*/true); }

// Gradients lie side by side in a tensor of the program, which is recorded.
void flat_gradients(Rig& rig) {
  const auto net = mlp(rig);
  DistributedDataParallel ddp(net, rig.world(), rig.options());
  auto optimizer = sgd(*net);
  std::int64_t size = 0;
  for (const auto& parameter : net->parameters()) size += parameter.numel();
  const torch::Tensor flat = torch::zeros({size});
  std::int64_t begin = 0;
  for (const auto& parameter : net->parameters()) {
    parameter.mutable_grad() = flat.narrow(0, begin, parameter.numel()).view_as(parameter);
    begin += parameter.numel();
  }
  for (std::size_t step = 0; step < steps; ++step) {
    flat.zero_();  // LibTorch's zero_grad(false) refuses views.
    rig.loss(ddp(rig.x(step)), step).backward();
    optimizer.step();
  }
  rig.record("flat", flat);
  rig.record_all(ddp);
}

}  // namespace

Scenarios gradient_scenarios() {
  return {{"small_buckets", small_buckets},
          {"default_buckets", default_buckets},
          {"bucket_list", bucket_list},
          {"in_double", in_double},
          {"sampled_cnn", sampled_cnn},
          {"large_mlp", large_mlp},
          {"accumulation", accumulation},
          {"accumulation_onto_zeros", accumulation_onto_zeros},
          {"adam", adam},
          {"tied", tied},
          {"mixed_types", mixed_types},
          {"complex_parameter", complex_parameter},
          {"common_layer", common_layer},
          {"common_layer_in_turns", common_layer_in_turns},
          {"frozen", frozen},
          {"several_forwards", several_forwards},
          {"fp16_hook", fp16_hook},
          {"bf16_hook", bf16_hook},
          {"power_sgd", power_sgd},
          {"power_sgd_of_rank_4", power_sgd_of_rank_4},
          {"power_sgd_from_cold", power_sgd_from_cold},
          {"power_sgd_in_buckets", power_sgd_in_buckets},
          {"post_local_sgd", post_local_sgd},
          {"gradient_views", gradient_views},
          {"kept_gradients", kept_gradients},
          {"set_data_on_gradients", set_data_on_gradients},
          {"set_data_on_gradient_views", set_data_on_gradient_views},
          {"flat_gradients", flat_gradients}};
}
