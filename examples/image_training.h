// For fashion_mnist.cpp and cifar10.cpp.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/lockstep.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>

#include "examples/checkpoints.h"
#include "examples/command_line.h"
#include "examples/models/cnn.h"
#include "examples/models/vit.h"

struct ImageShape {
  int channels;
  int size;  // Width and height.
  int classes;
};

class Computation {
 public:
  Computation(const Options& options, torch::Device device)
      : device_(device),
        is_cut_(options.tp > 1),
        is_mixed_(!options.amp.empty()),
        type_(options.amp == "fp16" ? torch::kHalf : torch::kBFloat16) {
    mixed_precision();  // Throws before the data is read.
  }

  // While it exists, forward() computes in 16 bits if --amp requests it.
  lockstep::Autocast mixed_precision() const {
    return lockstep::Autocast(device_.type(), type_, is_mixed_);
  }

  // 16-bit convolutions are fastest with adjacent channels.
  torch::Tensor images(const torch::Tensor& batch) const {
    const torch::Tensor images = batch.to(device_);
    return is_mixed_ ? images.contiguous(torch::MemoryFormat::ChannelsLast) : images;
  }

  torch::Device device() const { return device_; }

  // Disabled without --amp fp16. Ranks with parts of the weights have different infinities, and
  // query each other.
  lockstep::GradScaler scaler(const lockstep::ProcessGroup& world) const {
    return lockstep::GradScaler(is_cut_ ? world : lockstep::ProcessGroup::self(),
                                {.enabled = needs_scaler()});
  }

  // The scaler skips steps with infinities.
  lockstep::NonFinite non_finite() const {
    return needs_scaler() ? lockstep::NonFinite::ignore : lockstep::NonFinite::fail;
  }

 private:
  bool needs_scaler() const { return is_mixed_ && type_ == torch::kHalf; }

  const torch::Device device_;
  const bool is_cut_;
  const bool is_mixed_;
  const torch::ScalarType type_;
};

// Share of correctly classified test images. Each replica of `dp` classifies its own, without
// padding.
template <class Net, class OpenImages>
double accuracy(Net& net, const OpenImages& open_images, const lockstep::ProcessGroup& dp,
                const Computation& computation) {
  const auto test = open_images(/*train=*/false);
  lockstep::DistributedSampler sampler(*test.size(), dp, {.shuffle = false, .pad = false});
  lockstep::DataLoader loader(test, sampler, dp, {.batch_size = 500});
  const torch::NoGradGuard no_grad;
  const auto mixed_precision = computation.mixed_precision();
  net.eval();
  torch::Tensor right =
      torch::zeros({1}, torch::TensorOptions(computation.device()).dtype(torch::kLong));
  for (auto& batch : loader) {
    const torch::Tensor classes = net.forward(computation.images(batch.data)).argmax(1);
    right += classes.eq(batch.target.to(computation.device())).sum();
  }
  lockstep::all_reduce(right, dp);
  return right.item<double>() / static_cast<double>(*test.size());
}

// Empty if preempted before the last step.
template <class Net, class OpenImages>
std::optional<Report> train(Net& net, const OpenImages& open_images, const Options& options,
                            const lockstep::ProcessGroup& world, const lockstep::ProcessGroup& dp,
                            const Computation& computation) {
  lockstep::GradScaler scaler = computation.scaler(world);
  lockstep::DistributedDataParallel ddp(std::static_pointer_cast<Net>(net.shared_from_this()), dp,
                                        {.non_finite = computation.non_finite()});
  lockstep::Adam adam(net.parameters(), options.lr);

  const auto data = open_images(/*train=*/true);
  lockstep::DistributedSampler sampler(*data.size(), dp, {.seed = options.seed});

  const auto wanted =
      options.batch_size ? std::optional(*options.batch_size * dp.size()) : std::nullopt;
  std::int64_t global_batch = wanted.value_or(usual_batch_size * dp.size());
  std::int64_t step = 0;
  lockstep::TrainingState state;
  state.add("model", ddp);
  state.add("optimizer", adam, net);
  state.add("sampler", sampler);
  state.add("generators", lockstep::RandomGenerators(world));
  state.add("step", step);
  state.add("global_batch", global_batch);
  if (scaler.is_enabled()) state.add("scaler", scaler);
  Checkpoints checkpoints(options, world, state);
  checkpoints.resume();

  global_batch = global_batch_of(global_batch, wanted, world);
  const std::size_t batch_size = share_of(global_batch, dp);
  lockstep::DataLoader loader(data, sampler, dp, {.batch_size = batch_size, .seed = options.seed});
  const std::int64_t steps = last_step(options, step, sampler, batch_size);

  const SampleLog log(options.log_samples, world.rank());
  lockstep::Progress progress(steps,
                              {.enabled = world.rank() == 0, .label = "training", .done = step});
  const auto started = std::chrono::steady_clock::now();
  torch::Tensor loss = torch::zeros({}, computation.device());
  std::int64_t samples = 0;
  for (std::int64_t epoch = sampler.epoch(); step < steps; ++epoch) {
    sampler.set_epoch(epoch);
    for (auto& batch : loader) {
      adam.zero_grad();
      {
        const auto mixed_precision = computation.mixed_precision();
        loss = torch::nn::functional::cross_entropy(ddp(computation.images(batch.data)),
                                                    batch.target.to(computation.device()));
      }
      scaler.scale(loss).backward();
      scaler.step(adam);
      scaler.update();
      ++step;
      loader.consume(batch);
      log.write(step, batch.indices);
      samples += batch.data.size(0) * dp.size();
      progress.step(batch.data.size(0) * dp.size(), loss.item<double>());
      if (checkpoints.make_room(step)) return std::nullopt;
      checkpoints.after_step(step);
      if (step == steps) break;
    }
  }
  checkpoints.finish(step);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - started;
  lockstep::all_reduce(loss.detach_(), dp, lockstep::ReduceOp::average);
  return Report{.samples_per_second = static_cast<double>(samples) / time.count(),
                .seconds = time.count(),
                .loss = loss.item<double>(),
                .world_size = world.size(),
                .steps = steps};
}

// `plan` cuts the network over --tp ranks. Returns the exit code.
template <class Net, class OpenImages>
int train_and_test(const std::shared_ptr<Net>& net, const lockstep::ParallelPlan& plan,
                   const Options& options, const OpenImages& open_images,
                   lockstep::ProcessGroup& world) {
  const torch::Device device =
      options.device == "cuda" ? lockstep::local_device(world) : torch::Device(torch::kCPU);
  const Computation computation(options, device);
  if (!options.load.empty()) lockstep::load_weights(*net, options.load);
  net->to(device);
  lockstep::ProcessGroup dp = world;
  if (options.tp > 1) {
    const lockstep::DeviceMesh mesh(world, {{"dp", -1}, {"tp", options.tp}});
    lockstep::parallelize_module(*net, mesh["tp"], plan);
    dp = mesh["dp"];
  }

  auto report = train(*net, open_images, options, world, dp, computation);
  if (!report) return lockstep::exit_preempted;
  report->accuracy = accuracy(*net, open_images, dp, computation);
  lockstep::NamedTensors weights;  // Whole, although all ranks have parts.
  if (!options.save.empty()) weights = lockstep::whole_tensors(*net);
  const std::string digest = options.print_hash ? lockstep::sha256(*net) : "";

  if (world.rank() == 0) {
    std::cout << "test accuracy " << report->accuracy << ", " << report->samples_per_second
              << " samples/s, loss " << report->loss << std::endl;
    if (options.print_hash) std::cout << "sha256 " << digest << std::endl;
    if (!options.save.empty())
      lockstep::save_safetensors(options.save, weights, {{"format", "pt"}});
    if (!options.json.empty()) write_json(*report, options.json);
  }
  lockstep::destroy_process_group(world);
  return 0;
}

// With the network that the options name. `open_images(train)` returns training or test images.
template <class OpenImages>
int train_and_test(const Options& options, const ImageShape& shape, const OpenImages& open_images) {
  if (options.threads > 0) torch::set_num_threads(options.threads);
  auto world = lockstep::init_process_group();
  torch::manual_seed(options.seed);
  if (options.model == "cnn") {
    const auto cnn = std::make_shared<Cnn>(shape.channels, shape.size, shape.classes);
    return train_and_test(cnn, {}, options, open_images, world);
  }
  const VitOptions vit{.channels = shape.channels,
                       .image = shape.size,
                       .patch = 4,
                       .layers = 4,
                       .heads = 4,
                       .width = 128,
                       .hidden = 256,
                       .classes = shape.classes};
  return train_and_test(std::make_shared<Vit>(vit), vit_plan(vit), options, open_images, world);
}
