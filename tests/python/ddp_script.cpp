// TorchScript modules, and lists of named tensors with a function.

// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/jit/serialization/import.h>

#include "tests/python/ddp_scenarios.h"
#include "tests/python/ddp_training.h"

namespace {

using lockstep::DistributedDataParallel;
using lockstep::ScriptModule;

// Returns a script whose parameters are rank 0's on rank 0 only.
torch::jit::Module load_script(const Rig& rig, const std::string& name) {
  auto script = torch::jit::load((rig.folder() / (name + ".pt")).string());
  const torch::NoGradGuard no_grad;
  for (torch::Tensor parameter : script.parameters()) parameter.mul_(rig.world().rank() + 1);
  return script;
}

void train_script(Rig& rig, DistributedDataParallel<ScriptModule>& ddp,
                  torch::optim::Optimizer& optimizer, std::size_t begin, std::size_t end) {
  for (std::size_t step = begin; step < end; ++step) {
    optimizer.zero_grad();
    rig.loss(ddp(rig.x(step)).toTensor(), step).backward();
    optimizer.step();
  }
}

void script(Rig& rig) {
  const auto net = load_script(rig, "Norm");
  net.attr("norm").toModule().attr("running_mean").toTensor().fill_(rig.world().rank());
  DistributedDataParallel ddp(net, rig.world(), rig.options());
  auto optimizer = sgd(*ddp.module());
  for (std::size_t half : {0, 1}) {
    train_script(rig, ddp, optimizer, half * steps / 2, (half + 1) * steps / 2);
    const torch::NoGradGuard no_grad;
    ddp.module()->eval();
    for (std::size_t i = 0; i < 2 + rig.rank(); ++i)
      rig.record("evaluated" + std::to_string(half) + std::to_string(i), ddp(rig.x(i)).toTensor());
    ddp.module()->train();
  }
  rig.record_all(ddp);
}

void script_assigning(Rig& rig) {
  DistributedDataParallel ddp(load_script(rig, "Assigning"), rig.world(), rig.options());
  auto optimizer = sgd(*ddp.module());
  train_script(rig, ddp, optimizer, 0, steps);
  rig.record_all(ddp);
}

void script_branches(Rig& rig) {
  DistributedDataParallel ddp(load_script(rig, "ScriptBranches"), rig.world(), find_unused(rig));
  auto optimizer = sgd(*ddp.module());
  for (std::size_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const auto branch = static_cast<std::int64_t>(changing_branch(rig, step));
    const auto outputs = ddp(rig.x(step), branch).toTuple();
    const auto penalty = outputs->elements()[1].toGenericDict().at("penalty").toTensor();
    (rig.loss(outputs->elements()[0].toTensor(), step) + penalty).backward();
    optimizer.step();
  }
  rig.record_all(ddp);
}

// The module Norm as a list of its tensors, and a function.
void function(Rig& rig) {
  const auto net = rig.load("Norm", std::make_shared<Norm>());
  const auto model = lockstep::function_module(
      lockstep::named_parameters(*net), lockstep::named_buffers(*net),
      [layer1 = net->linear1, norm = net->norm, layer2 = net->linear2](const torch::Tensor& x) {
        norm->num_batches_tracked.add_(1);
        const auto y = torch::batch_norm(torch::linear(x, layer1->weight, layer1->bias),
                                         norm->weight, norm->bias, norm->running_mean,
                                         norm->running_var, /*training=*/true, /*momentum=*/0.1,
                                         /*eps=*/1e-5, /*cudnn_enabled=*/true);
        return torch::linear(torch::relu(y), layer2->weight, layer2->bias);
      });
  train_with_sgd(rig, model, rig.options());
}

}  // namespace

Scenarios script_scenarios() {
  return {{"script", script},
          {"script_assigning", script_assigning},
          {"script_branches", script_branches},
          {"function", function}};
}
