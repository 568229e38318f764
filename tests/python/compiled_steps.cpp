// Lockstep's side of compiled_test.py, one rank of it.
//   compiled_steps FOLDER
// FOLDER holds step.pt2, step.safetensors and the batches of each rank. It gets
// ours.CASE.RANKS.RANK: losses, parameters and buffers after all steps.

// SPDX-License-Identifier: Apache-2.0
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/job/record.h"
#include "lockstep/optim/mixed_precision.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/parallel/shared_parameters/shared_optimizer.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/toolkit/compiled/compiled_module.h"
#include "lockstep/train/training_state.h"

namespace {

namespace fs = std::filesystem;

using lockstep::CompiledModule, lockstep::Fault;
using torch::Tensor;

constexpr std::int64_t batch_size = 8;

// --- Training ------------------------------------------------------------------------------------

// The model of compiled_model.py in eager C++, with the parameters of a CompiledModule.
struct Eager : torch::nn::Module {
  explicit Eager(std::shared_ptr<CompiledModule> compiled)
      : state(register_module("state", std::move(compiled))) {}

  Tensor forward(const Tensor& images, const Tensor& classes) {
    const auto p = state->named_parameters(), b = state->named_buffers();
    Tensor x = torch::conv2d(images, p["conv.weight"], p["conv.bias"]);
    b["norm.num_batches_tracked"].add_(1);
    x = torch::batch_norm(x, p["norm.weight"], p["norm.bias"], b["norm.running_mean"],
                          b["norm.running_var"], true, 0.1, 1e-5, false);
    x = torch::conv2d(x.relu(), p["mix.0.weight"], p["mix.0.bias"]).relu();
    x = torch::conv2d(x, p["mix.0.weight"], p["mix.2.bias"]);
    x = torch::dropout(torch::max_pool2d(x, 2).flatten(1), 0.25, true);
    return torch::cross_entropy_loss(torch::linear(x, p["head.weight"], p["head.bias"]), classes);
  }

  std::shared_ptr<CompiledModule> state;
};

class Rig {
 public:
  Rig(fs::path folder, const lockstep::ProcessGroup& group)
      : world(group), folder_(std::move(folder)) {
    const auto file = folder_ / ("batches." + std::to_string(world.rank()));
    for (auto& [name, tensor] : lockstep::load_safetensors(file).tensors)
      (name == "images" ? images_ : classes_) = tensor;
  }

  std::shared_ptr<CompiledModule> model() const {
    return CompiledModule::load(folder_ / "step.pt2", folder_ / "step.safetensors");
  }

  std::int64_t steps() const { return images_.size(0); }
  fs::path checkpoints() const { return folder_ / ("checkpoints" + std::to_string(world.size())); }

  // Runs steps [begin, end) of as many passes each.
  template <class Ddp, class Optimizer>
  void train(Ddp& ddp, Optimizer& optimizer, std::int64_t begin, std::int64_t end,
             std::int64_t passes = 1) {
    for (std::int64_t step = begin; step < end; ++step) {
      optimizer.zero_grad();
      for (std::int64_t part = 0; part < passes; ++part) {
        const auto no_sync = ddp.no_sync(part + 1 < passes);
        const auto rows = [&](const Tensor& of_all) {
          return of_all[step].slice(0, part * batch_size, (part + 1) * batch_size);
        };
        torch::manual_seed(static_cast<std::uint64_t>(1000 * step + 10 * part + world.rank()));
        const Tensor loss = ddp(rows(images_), rows(classes_));
        loss.backward();
        losses_.push_back(loss.detach().to(torch::kDouble));
      }
      optimizer.step();
    }
  }

  void save(const std::string& name, const torch::nn::Module& module) {
    lockstep::NamedTensors results = lockstep::named_tensors(module);
    results.emplace_back("losses", torch::stack(std::exchange(losses_, {})));
    lockstep::save_safetensors(folder_ / ("ours." + name + "." + std::to_string(world.size()) +
                                          "." + std::to_string(world.rank())),
                               results);
  }

  const lockstep::ProcessGroup& world;

 private:
  const fs::path folder_;
  Tensor images_;
  Tensor classes_;
  std::vector<Tensor> losses_;
};

const lockstep::DistributedDataParallelOptions with_unused{.find_unused_parameters = true};
const auto sgd_options = torch::optim::SGDOptions(0.1).momentum(0.9);

void plain(Rig& rig, const std::string& name, std::int64_t passes) {
  const auto model = rig.model();
  lockstep::DistributedDataParallel ddp(model, rig.world, with_unused);
  lockstep::SGD sgd(model->parameters(), sgd_options);
  rig.train(ddp, sgd, 0, rig.steps(), passes);
  rig.save(name, *model);
}

void eager(Rig& rig) {
  const auto model = std::make_shared<Eager>(rig.model());
  lockstep::DistributedDataParallel ddp(model, rig.world, with_unused);
  lockstep::SGD sgd(model->parameters(), sgd_options);
  rig.train(ddp, sgd, 0, rig.steps());
  rig.save("eager", *model->state);
}

void zero(Rig& rig) {
  const auto model = rig.model();
  lockstep::DistributedDataParallel ddp(model, rig.world, with_unused);
  lockstep::ZeroRedundancyOptimizer<lockstep::SGD> sgd(model->parameters(), rig.world, sgd_options);
  ddp.shard_gradients(sgd);
  rig.train(ddp, sgd, 0, rig.steps());
  rig.save("zero", *model);
}

void shared(Rig& rig) {
  const auto model = rig.model();
  auto options = with_unused;
  options.share_parameters = true;
  lockstep::DistributedDataParallel ddp(model, rig.world, options);
  lockstep::SharedOptimizer<lockstep::SGD> sgd(ddp, model->parameters(), sgd_options);
  rig.train(ddp, sgd, 0, rig.steps());
  rig.save("shared", *model);
}

// Trains one half, then recreates all objects and trains the other half.
void resume(Rig& rig) {
  for (const std::int64_t begin : {std::int64_t{0}, rig.steps() / 2}) {
    const auto model = rig.model();
    lockstep::DistributedDataParallel ddp(model, rig.world, with_unused);
    lockstep::SGD sgd(model->parameters(), sgd_options);
    lockstep::TrainingState state;
    state.add("model", ddp);
    state.add("sgd", sgd, *model);
    lockstep::Checkpointer checkpointer(rig.checkpoints(), rig.world);
    lockstep::require(checkpointer.resume(state).has_value() == (begin > 0), "no checkpoint");
    rig.train(ddp, sgd, begin, begin + rig.steps() / 2);
    checkpointer.save(begin + rig.steps() / 2, state);
    checkpointer.wait();
    if (begin > 0) rig.save("resume", *model);
  }
}

// --- Refusals ------------------------------------------------------------------------------------

// Exits unless `call` throws an Error of this fault whose message has `part`.
void expect(Fault fault, const std::string& part, const std::function<void()>& call) {
  std::string text = "nothing was thrown";
  try {
    call();
  } catch (const lockstep::Error& error) {
    text = error.what();
    if (error.fault() == fault && text.find(part) != text.npos) return;
  }
  std::cerr << "'" << part << "' was expected, and not:\n" << text << std::endl;
  std::exit(1);
}

void require(bool ok, const char* what) {
  if (ok) return;
  std::cerr << what << std::endl;
  std::exit(1);
}

void refuse_packages(const fs::path& folder) {
  const auto load = [&](const std::string& name) {
    return [=] { CompiledModule::load(folder / name, folder / "step.safetensors"); };
  };
  expect(Fault::system, "absent.pt2: No such file", load("absent.pt2"));
  expect(Fault::corrupt, "truncated.pt2: the archive is damaged", load("truncated.pt2"));
  expect(Fault::corrupt, "empty.pt2: the file is empty", load("empty.pt2"));
  expect(Fault::corrupt, "foreign.pt2: this archive is no package of lockstep_export",
         load("foreign.pt2"));
  expect(Fault::corrupt, ".so is damaged", load("damaged.pt2"));
  expect(Fault::corrupt, "the order is no order of the dimensions", load("form.pt2"));
  expect(Fault::unsupported, "its form is lockstep-compiled-9", load("format.pt2"));
  expect(Fault::unsupported, "compiled for a CPU with avx1024, which this one lacks",
         load("cpu.pt2"));
  expect(Fault::unsupported,
         "compiled with PyTorch 2.1.0+cpu, but this program has LibTorch " TORCH_VERSION,
         load("torch.pt2"));
}

// Code for one thread, in a process with two.
void warn_of_threads(const Rig& rig) {
  std::string text;
  lockstep::set_log_sink([&](lockstep::LogLevel, std::string_view line) { text = line; });
  rig.model();
  require(text.empty(), text.c_str());
  torch::set_num_threads(2);
  rig.model();
  torch::set_num_threads(1);
  lockstep::set_log_sink({});
  require(text.find("computes with 1 threads, and this process with 2") != text.npos, text.c_str());
}

void refuse_weights(const fs::path& folder, CompiledModule& model) {
  lockstep::NamedTensors tensors = lockstep::named_tensors(model);
  const auto load = [&] {
    lockstep::save_safetensors(folder / "other.safetensors", tensors);
    return CompiledModule::load(folder / "step.pt2", folder / "other.safetensors");
  };
  // The tied weight may have any of its names, as in files of Python's save_model().
  for (auto& [name, tensor] : tensors)
    if (name == "mix.0.weight") name = "mix.2.weight";
  require(
      load()->named_parameters()["mix.0.weight"].equal(model.named_parameters()["mix.0.weight"]),
      "the tied weight was not loaded under its second name");
  tensors[0].first = "conv.other";
  expect(Fault::misuse, "conv.other", load);
}

void refuse_inputs(CompiledModule& model, const Tensor& images, const Tensor& classes) {
  const auto call = [&](const Tensor& x, const Tensor& y) {
    return [&model, x, y] { model.forward(x, y); };
  };
  expect(Fault::misuse, "takes 2 inputs, not 1", [&] { model.forward(images); });
  expect(Fault::misuse,
         "input 0 is Double [8, 3, 8, 8], but the code is for Float [batch, 3, 8, 8]",
         call(images.to(torch::kDouble), classes));
  expect(Fault::misuse, "input 0 is Float [8, 3, 8, 7]", call(images.slice(3, 1), classes));
  expect(Fault::misuse, "input 1 is Long [8, 1], but the code is for Long [batch]",
         call(images, classes.unsqueeze(1)));
  expect(Fault::misuse, "input 1 has 7 samples, and an input before it 8",
         call(images, classes.slice(0, 1)));
  expect(Fault::misuse, "a batch of 1, but the code is for batches of 2 and more",
         call(images.slice(0, 7), classes.slice(0, 7)));
  expect(Fault::misuse, "input 0 requires a gradient",
         call(images.clone().requires_grad_(), classes));
  expect(Fault::misuse, "undefined", call(Tensor(), classes));
}

void refuse_parameters(CompiledModule& model, const Tensor& images, const Tensor& classes) {
  Tensor frozen = model.named_parameters()["mix.0.bias"];
  frozen.set_requires_grad(true);
  expect(Fault::misuse, "mix.0.bias requires a gradient", [&] { model.forward(images, classes); });
  frozen.set_requires_grad(false);
  Tensor weight = model.named_parameters()["conv.weight"];
  const Tensor before = weight.detach().clone();
  weight.set_data(before.to(torch::kDouble));
  expect(Fault::misuse, "conv.weight is Double [8, 3, 3, 3]",
         [&] { model.forward(images, classes); });
  weight.set_data(before.contiguous(torch::MemoryFormat::ChannelsLast));
  expect(Fault::misuse, "in the layout of the export", [&] { model.forward(images, classes); });
  weight.set_data(before);
}

void refuse_passes(CompiledModule& model, const Tensor& images, const Tensor& classes) {
  const Tensor loss = model.forward(images, classes);
  loss.backward({}, /*retain_graph=*/true);
  expect(Fault::misuse, "a second backward()", [&] { loss.backward(); });
  expect(Fault::misuse, "create_graph", [&] {
    model.forward(images, classes).backward({}, /*keep_graph=*/true, /*create_graph=*/true);
  });
}

// The backward multiplies by the gradient of the loss, as GradScaler needs. Other layouts are
// copied. In evaluation, a smaller batch has the results of the larger one's samples.
void check_values(CompiledModule& model, const Tensor& images, const Tensor& classes) {
  const auto gradient = [&](const Tensor& x, double scale) {
    model.zero_grad();
    torch::manual_seed(5);
    (model.forward(x, classes) * scale).backward();
    return model.named_parameters()["head.weight"].grad();
  };
  const Tensor once = gradient(images, 1);
  require(torch::allclose(gradient(images, 8), 8 * once), "the gradient is not scaled");
  const Tensor other_layout = images.contiguous(torch::MemoryFormat::ChannelsLast);
  require(gradient(other_layout, 1).equal(once), "another layout has another gradient");
  {
    const lockstep::Autocast autocast(torch::kCPU, torch::kBFloat16);
    require(gradient(images, 1).equal(once), "Autocast changes the code");
  }
  require(!model.named_parameters()["spare"].grad().defined(),
          "an unused parameter has a gradient");

  const Tensor tracked = model.named_buffers()["norm.num_batches_tracked"];
  const auto before = tracked.item<std::int64_t>();
  {
    const torch::NoGradGuard no_grad;
    require(!model.forward(images, classes).requires_grad(), "a loss without gradients has one");
  }
  require(tracked.item<std::int64_t>() == before + 1, "training mode leaves buffers alone");
  model.eval();
  require(!model.forward(images, classes).requires_grad(), "a loss in evaluation has a gradient");
  const Tensor logits = model.outputs().at(0);
  require(logits.sizes() == torch::IntArrayRef({batch_size, 5}), "the outputs are other ones");
  model.forward(images.slice(0, 3), classes.slice(0, 3));
  require(torch::allclose(model.outputs().at(0), logits.slice(0, 3), 1e-5, 1e-6),
          "a smaller batch has other results");
  require(tracked.item<std::int64_t>() == before + 1, "evaluation mode changes buffers");
  model.train();
}

void refuse(const fs::path& folder, Rig& rig) {
  refuse_packages(folder);
  warn_of_threads(rig);
  const auto model = rig.model();
  torch::manual_seed(1);
  const Tensor images = torch::randn({batch_size, 3, 8, 8}),
               classes = torch::randint(5, {batch_size}, torch::kLong);
  refuse_weights(folder, *model);
  refuse_inputs(*model, images, classes);
  refuse_parameters(*model, images, classes);
  refuse_passes(*model, images, classes);
  check_values(*model, images, classes);
}

// Without find_unused_parameters, DistributedDataParallel names a parameter that does not
// contribute.
void refuse_unused(Rig& rig) {
  lockstep::DistributedDataParallel ddp(rig.model(), rig.world);
  const Tensor images = torch::randn({batch_size, 3, 8, 8}),
               classes = torch::zeros({batch_size}, torch::kLong);
  expect(Fault::misuse, "spare", [&] { ddp(images, classes).backward(); });
}

int run(const fs::path& folder) {
  auto world = lockstep::init_process_group();
  Rig rig(folder, world);
  plain(rig, "plain", 1);
  plain(rig, "accumulate", 2);
  eager(rig);
  zero(rig);
  shared(rig);
  resume(rig);
  if (world.size() == 1) refuse(folder, rig);
  refuse_unused(rig);
  lockstep::destroy_process_group(world);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return lockstep::exit_usage;
  torch::set_num_threads(1);
  return lockstep::record([&] { return run(argv[1]); });
}
