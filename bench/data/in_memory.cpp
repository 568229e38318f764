// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include <chrono>
#include <cstdint>
#include <utility>

#include "bench/data/sides.h"
#include "examples/models/cnn.h"
#include "lockstep/toolkit.h"

namespace lockstep::bench {
namespace {

constexpr std::size_t samples = 20'000;
constexpr int timed_passes = 5;

ImageDataset images() {
  return {torch::randint(256, {samples, 1, 28, 28}, torch::kByte),
          torch::randint(10, {samples}, torch::kLong)};
}

double process_cpu_us() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

// Reads one value of each batch, so that the compiler cannot remove it.
template <class Batches>
void read_all(Batches& batches) {
  float sum = 0;
  for (const auto& batch : batches) sum += *batch.data.template const_data_ptr<float>();
  [[maybe_unused]] static volatile float sink;
  sink = sum;
}

// Milliseconds of a step; `run(step)` passes each batch to `step`.
template <class Run>
double step_ms(Run run) {
  constexpr int warm_up = 30;
  constexpr int steps = 200;
  torch::manual_seed(0);
  auto net = std::make_shared<Cnn>(/*channels=*/1, /*size=*/28, /*classes=*/10);
  Adam adam(net->parameters(), 1e-3);
  int step = 0;
  std::chrono::steady_clock::time_point begin;
  run([&](const at::Tensor& data, const at::Tensor& target) {
    if (step == warm_up) begin = std::chrono::steady_clock::now();
    adam.zero_grad();
    torch::nn::functional::cross_entropy(net->forward(data), target).backward();
    adam.step();
    return ++step < warm_up + steps;
  });
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
  return time.count() / steps;
}

}  // namespace

double cpu_us(std::size_t count, const std::function<void()>& pass) {
  pass();
  const double begin = process_cpu_us();
  for (int i = 0; i < timed_passes; ++i) pass();
  return (process_cpu_us() - begin) / (timed_passes * static_cast<double>(count));
}

double in_memory_by_loader(const SideOptions& options) {
  const ImageDataset data = images();
  DistributedSampler sampler(samples, 1, 0);
  DataLoader loader(data, sampler, {.batch_size = options.batch_size, .threads = options.threads});
  return cpu_us(samples, [&] { read_all(loader); });
}

double in_memory_by_torch_data(const SideOptions& options) {
  auto data = images().map(torch::data::transforms::Stack<>());
  const auto loading = torch::data::DataLoaderOptions(options.batch_size)
                           .workers(static_cast<std::size_t>(options.threads));
  auto loader =
      torch::data::make_data_loader(data, torch::data::samplers::RandomSampler(samples), loading);
  return cpu_us(samples, [&] { read_all(*loader); });
}

double step_with_loader(const SideOptions& options) {
  const ImageDataset data = images();
  DistributedSampler sampler(samples, 1, 0);
  DataLoader loader(
      data, sampler,
      {.batch_size = options.batch_size, .threads = options.threads, .drop_last = true});
  return step_ms([&](const auto& step) {
    for (;;)
      for (const Batch& batch : loader)
        if (!step(batch.data, batch.target)) return;
  });
}

double step_with_cached_batch(const SideOptions& options) {
  const ImageDataset data = images();
  DataLoader loader(data, DistributedSampler(samples, 1, 0), {.batch_size = options.batch_size});
  const auto first = loader.begin();
  return step_ms([&](const auto& step) {
    while (step(first->data, first->target)) {
    }
  });
}

}  // namespace lockstep::bench
