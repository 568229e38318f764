// SPDX-License-Identifier: Apache-2.0
#include "bench/ddp/workload.h"

#include <lockstep/parallel/deterministic/deterministic_data_parallel.h>
#include <lockstep/parallel/gradients/communication_hook.h>
#include <lockstep/parallel/gradients/power_sgd.h>
#include <lockstep/parallel/replicate/distributed_data_parallel.h>
#include <lockstep/tensor/collectives.h>
#include <torch/nn/functional/loss.h>

#include <memory>
#include <stdexcept>
#include <utility>

#include "examples/models/cnn.h"
#include "examples/models/efficientnet.h"
#include "examples/models/gpt.h"
#include "examples/models/resnet.h"

namespace {

using World = std::optional<lockstep::ProcessGroup>;

lockstep::DistributedDataParallelOptions ddp_options(const Options& options) {
  return {.broadcast_buffers = options.broadcast_buffers,
          .find_unused_parameters = options.find_unused,
          .bucket_cap_mb = options.bucket_cap_mb,
          .overlap = options.overlap,
          .share_parameters = options.optimizer == "shared"};
}

lockstep::DeterministicOptions deterministic_options(const Options& options) {
  return {.microbatches = options.deterministic,
          .share_parameters = options.optimizer == "shared",
          .find_unused_parameters = options.find_unused};
}

torch::Tensor channels_last(const torch::Tensor& tensor) {
  return tensor.dim() == 4 ? tensor.contiguous(at::MemoryFormat::ChannelsLast) : tensor;
}

at::Device device_of(const Options& options, const World& world) {
  if (options.device == "cpu") return at::kCPU;
  return world ? lockstep::local_device(*world) : at::Device(at::kCUDA, 0);
}

template <class Module>
Workload workload(std::shared_ptr<Module> net, torch::Tensor inputs, torch::Tensor targets,
                  const Options& options, const World& world) {
  const at::Device device = device_of(options, world);
  net->to(device);
  inputs = inputs.to(device);
  targets = targets.to(device);
  if (options.amp) {
    inputs = channels_last(inputs);
    for (torch::Tensor& parameter : net->parameters()) parameter.set_data(channels_last(parameter));
  }
  Workload work{std::move(inputs), std::move(targets), net->parameters(), {}, nullptr};
  if (!world) {
    work.forward = [net](const torch::Tensor& x) { return net->forward(x); };
    return work;
  }
  const auto use = [&work](const auto& ddp) {
    work.forward = [ddp](const torch::Tensor& x) { return (*ddp)(x); };
    work.ddp = ddp;
  };
  if (options.deterministic > 0) {
    use(std::make_shared<lockstep::DeterministicDataParallel<Module>>(
        net, *world, deterministic_options(options)));
    return work;
  }
  const auto ddp = std::make_shared<lockstep::DistributedDataParallel<Module>>(
      net, *world, ddp_options(options));
  if (options.bf16) ddp->register_comm_hook(lockstep::bf16_compress_hook());
  if (options.power_sgd > 0)
    ddp->register_comm_hook(
        lockstep::PowerSGD(*world,
                           {.matrix_approximation_rank = options.power_sgd, .start_step = 2})
            .hook());
  use(ddp);
  return work;
}

template <class Module>
Workload of_images(std::shared_ptr<Module> net, std::int64_t size, std::int64_t classes,
                   const Options& options, const World& world) {
  return workload(std::move(net), torch::randn({options.batch, 3, size, size}),
                  torch::randint(classes, {options.batch}, torch::kLong), options, world);
}

Workload of_tokens(const Options& options, const World& world) {
  const GptOptions gpt{
      .vocabulary = 8192, .block_size = 128, .layers = 6, .heads = 6, .width = 384};
  const auto tokens =
      torch::randint(gpt.vocabulary, {options.batch, gpt.block_size + 1}, torch::kLong);
  return workload(std::make_shared<Gpt>(gpt), tokens.slice(1, 0, gpt.block_size).contiguous(),
                  tokens.slice(1, 1).contiguous(), options, world);
}

}  // namespace

torch::Tensor loss_of(const torch::Tensor& outputs, const torch::Tensor& targets) {
  return torch::nn::functional::cross_entropy(outputs.flatten(0, -2), targets.flatten());
}

Workload make_workload(const Options& options, const World& world) {
  torch::manual_seed(0);
  if (options.model == "cnn")
    return of_images(std::make_shared<Cnn>(/*channels=*/3, /*size=*/32, /*classes=*/10), 32, 10,
                     options, world);
  if (options.model == "resnet18")
    return of_images(resnet18(/*classes=*/100).ptr(), 64, 100, options, world);
  if (options.model == "efficientnet_b0")
    return of_images(efficientnet_b(0, /*classes=*/100).ptr(), 64, 100, options, world);
  if (options.model == "gpt") return of_tokens(options, world);
  throw std::runtime_error("there is no model " + options.model);
}
