// Trains a small residual network on DIR/train and tests it on DIR/val, with a folder per class,
// like ImageNet.
//   lockstep run -n 8 imagenet --data DIR --threads 2 --cache 32000 --skip-bad 100

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/toolkit.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/command_line.h"

namespace {

struct ImageNetOptions {
  std::string data;
  int epochs = 10;
  std::size_t batch_size = 64;
  std::int64_t size = 224;
  int width = 32;
  double lr = 1e-3;
  std::uint64_t seed = 0;
  int threads = 1;
  std::size_t cache = 0;
  std::size_t skip_bad = 0;
  std::string amp = {};
  std::string checkpoint = {};
  std::int64_t checkpoint_every = 1000;
};

ImageNetOptions read_command_line(int argc, char** argv) {
  ImageNetOptions options;
  const CLI::Range positive(std::int64_t{1}, std::int64_t{1'000'000});
  const CLI::Range not_negative(std::int64_t{0}, std::int64_t{1'000'000});
  CLI::App app(
      "Trains a small residual network on a folder of images, on every rank of the job.\n"
      "  lockstep run -n 2 imagenet --data DIR");
  app.option_defaults()->always_capture_default();
  app.add_option("--data", options.data,
                 "a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or .png")
      ->required()
      ->check(CLI::ExistingDirectory);
  app.add_option("--epochs", options.epochs)->check(not_negative);
  app.add_option("--batch-size", options.batch_size, "of each rank")->check(positive);
  app.add_option("--size", options.size, "width and height of what the network sees")
      ->check(CLI::Range(8, 4096));
  app.add_option("--width", options.width, "channels of the first layer")->check(positive);
  app.add_option("--lr", options.lr)
      ->check(CLI::Range(1e-12, 1000.0))
      ->check(CLI::Validator(unless_number, ""));
  app.add_option("--seed", options.seed)->check(not_negative);
  app.add_option("--threads", options.threads, "of each rank, to decode images")
      ->check(not_negative);
  app.add_option("--cache", options.cache,
                 "MiB of memory in which all ranks of a host keep decoded images; 0: none")
      ->check(not_negative);
  app.add_option("--skip-bad", options.skip_bad, "damaged images to leave out; more are an error")
      ->check(not_negative);
  app.add_option("--amp", options.amp, "mixed precision: layers compute in bfloat16")
      ->check(CLI::IsMember({"bf16"}));
  CLI::Option* const folder =
      app.add_option("--checkpoint", options.checkpoint,
                     "a folder: saved at the end, resumed at start on any number of ranks");
  app.add_option("--checkpoint-every", options.checkpoint_every, "steps between checkpoints")
      ->check(positive)
      ->needs(folder);
  parse(app, argc, argv);
  return options;
}

struct BlockImpl : torch::nn::Module {
  BlockImpl(int from, int to, int stride)
      : body(register_module(
            "body", torch::nn::Sequential(convolution(from, to, 3, stride),
                                          torch::nn::BatchNorm2d(to), torch::nn::ReLU(),
                                          convolution(to, to, 3, 1), torch::nn::BatchNorm2d(to)))),
        shortcut(register_module("shortcut", torch::nn::Sequential(convolution(from, to, 1, stride),
                                                                   torch::nn::BatchNorm2d(to)))) {}

  static torch::nn::Conv2d convolution(int from, int to, int kernel, int stride) {
    return torch::nn::Conv2d(
        torch::nn::Conv2dOptions(from, to, kernel).stride(stride).padding(kernel / 2).bias(false));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    return torch::relu(body->forward(x) + shortcut->forward(x));
  }

  torch::nn::Sequential body;
  torch::nn::Sequential shortcut;
};
TORCH_MODULE(Block);

// For images of any size. Begins with a plain convolution, because of a bug of LibTorch 2.13. For
// channels_last images, backward() of a block's shortcut with one pixel and three channels writes
// out of bounds.
struct SmallResNet : torch::nn::Module {
  SmallResNet(int width, std::size_t classes)
      : blocks(register_module(
            "blocks", torch::nn::Sequential(BlockImpl::convolution(3, width, 3, 2),
                                            torch::nn::BatchNorm2d(width), torch::nn::ReLU(),
                                            Block(width, width, 1), Block(width, 2 * width, 2),
                                            Block(2 * width, 4 * width, 2)))),
        out(register_module("out", torch::nn::Linear(4 * width, classes))) {}

  torch::Tensor forward(const torch::Tensor& x) { return out(blocks->forward(x).mean({2, 3})); }

  torch::nn::Sequential blocks;
  torch::nn::Linear out;
};

lockstep::Normalize normalize() { return {{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}; }

lockstep::ImageFolder open_training_images(const ImageNetOptions& options,
                                           const lockstep::ProcessGroup& world) {
  std::optional<lockstep::HostCache> cache;
  if (options.cache > 0)
    cache = {.bytes = options.cache << 20, .shorter_side = options.size * 8 / 7, .group = world};
  return lockstep::ImageFolder(std::filesystem::path(options.data) / "train",
                               {.transform = lockstep::RandomResizedCrop(options.size) |
                                             lockstep::RandomHorizontalFlip() | normalize(),
                                .cache = cache,
                                .bad_files = lockstep::BadFiles::skip(options.skip_bad)});
}

lockstep::ImageFolder open_test_images(const ImageNetOptions& options) {
  return lockstep::ImageFolder(std::filesystem::path(options.data) / "val",
                               {.transform = lockstep::Resize(options.size * 8 / 7) |
                                             lockstep::CenterCrop(options.size) | normalize()});
}

// A class in only one folder would renumber all later classes.
void require_same_classes(const lockstep::ImageFolder& train, const lockstep::ImageFolder& test) {
  std::vector<std::string> only_one;
  std::ranges::set_symmetric_difference(train.classes(), test.classes(),
                                        std::back_inserter(only_one));
  lockstep::require(only_one.empty(), [&] {
    return "train and val have other classes: only one of them has " + only_one.front();
  });
}

lockstep::Autocast mixed_precision(const ImageNetOptions& options) {
  return lockstep::Autocast(torch::kCPU, torch::kBFloat16, !options.amp.empty());
}

lockstep::DataLoaderOptions loader_options(const ImageNetOptions& options) {
  return {.batch_size = options.batch_size,
          .threads = options.threads,
          .memory_format = torch::MemoryFormat::ChannelsLast,
          .seed = options.seed};
}

double accuracy(SmallResNet& net, const lockstep::ImageFolder& images,
                const ImageNetOptions& options, const lockstep::ProcessGroup& world) {
  const lockstep::DistributedSampler sampler(images.size(), world,
                                             {.shuffle = false, .pad = false});
  lockstep::DataLoader loader(images, sampler, world, loader_options(options));
  const torch::NoGradGuard no_grad;
  const auto amp = mixed_precision(options);
  net.eval();
  torch::Tensor right = torch::zeros({}, torch::kLong);
  for (auto& batch : loader) right += net.forward(batch.data).argmax(1).eq(batch.target).sum();
  net.train();
  lockstep::all_reduce(right, world);
  return right.item<double>() / static_cast<double>(images.size());
}

// From the sampler's position to the end of the last epoch.
std::int64_t steps_left(const lockstep::DistributedSampler& sampler,
                        const lockstep::DataLoader& loader, const ImageNetOptions& options) {
  const std::int64_t epochs = options.epochs - sampler.epoch();
  if (epochs <= 0) return 0;
  const auto rest = (sampler.remaining() + options.batch_size - 1) / options.batch_size;
  return static_cast<std::int64_t>(rest + loader.size() * static_cast<std::size_t>(epochs - 1));
}

int train_and_test(const ImageNetOptions& options) {
  auto world = lockstep::init_process_group();
  torch::manual_seed(options.seed);
  const lockstep::ImageFolder images = open_training_images(options, world);
  const lockstep::ImageFolder test = open_test_images(options);
  require_same_classes(images, test);
  const auto net = std::make_shared<SmallResNet>(options.width, images.classes().size());
  lockstep::DistributedDataParallel ddp(net, world);
  lockstep::Adam adam(net->parameters(), options.lr);
  lockstep::DistributedSampler sampler(images.size(), world, {.seed = options.seed});
  lockstep::DataLoader loader(images, sampler, world, loader_options(options));

  std::int64_t step = 0;
  lockstep::TrainingState state;  // No generators: random numbers depend on seed and epoch.
  state.add("model", ddp);
  state.add("optimizer", adam, *net);
  state.add("sampler", sampler);
  state.add("step", step);
  std::optional<lockstep::Checkpointer> checkpoints;
  if (!options.checkpoint.empty()) {
    checkpoints.emplace(options.checkpoint, world,
                        lockstep::CheckpointerOptions{.keep_last = 2, .async = true});
    if (checkpoints->resume(state) && world.rank() == 0)
      std::cerr << "resumed after step " << step << std::endl;
  }

  const std::int64_t steps = step + steps_left(sampler, loader, options);
  lockstep::Progress progress(steps,
                              {.enabled = world.rank() == 0, .label = "training", .done = step});
  for (std::int64_t epoch = sampler.epoch(); epoch < options.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    for (auto& batch : loader) {
      adam.zero_grad();
      torch::Tensor loss;
      {
        const auto amp = mixed_precision(options);
        loss = torch::cross_entropy_loss(ddp(batch.data), batch.target);
      }
      loss.backward();
      adam.step();
      loader.consume(batch);
      ++step;
      if (checkpoints && (step % options.checkpoint_every == 0 || step == steps))
        checkpoints->save(step, state);
      progress.step(batch.data.size(0) * world.size(), loss.item<double>());
    }
  }
  if (checkpoints) checkpoints->wait();
  const double share = accuracy(*net, test, options, world);
  const std::string digest = lockstep::sha256(*net).substr(0, 12);
  if (world.rank() == 0)
    std::cout << "accuracy " << share << " on " << options.data << "/val after " << step
              << " steps, weights " << digest << ", " << images.cached_images()
              << " images in the cache, " << images.bad_files().size() << " bad files" << std::endl;
  lockstep::destroy_process_group(world);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const ImageNetOptions options = read_command_line(argc, argv);
  return lockstep::record([&] { return train_and_test(options); });
}
