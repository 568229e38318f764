// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "bench/data/sides.h"
#include "lockstep/toolkit.h"

namespace lockstep::bench {
namespace {

// The usual transforms for training on ImageNet.
ImageTransform recipe() {
  return RandomResizedCrop(224) | RandomHorizontalFlip() |
         Normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
}

double images_us(const SideOptions& options, const std::optional<HostCache>& cache) {
  const ImageFolder images(options.data, {.transform = recipe(), .cache = cache});
  DistributedSampler sampler(images.size(), 1, 0);
  DataLoader loader(images, sampler,
                    {.batch_size = options.batch_size,
                     .threads = options.threads,
                     .memory_format = at::MemoryFormat::ChannelsLast});
  float sum = 0;
  std::int64_t epoch = 0;
  const double cost = cpu_us(images.size(), [&] {
    sampler.set_epoch(epoch++);
    for (const Batch& batch : loader) sum += *batch.data.const_data_ptr<float>();
  });
  [[maybe_unused]] static volatile float sink;
  sink = sum;  // Prevents the compiler from removing a batch.
  return cost;
}

}  // namespace

double images_by_image_folder(const SideOptions& options) { return images_us(options, {}); }

double images_by_host_cache(const SideOptions& options) {
  return images_us(options, HostCache{.bytes = std::size_t{1} << 30, .shorter_side = 256});
}

double first_batch_by_image_folder(const SideOptions& options) {
  const ImageFolder images(options.data, {.transform = recipe()});
  const auto begin = std::chrono::steady_clock::now();
  DataLoader loader(images, DistributedSampler(images.size(), 1, 0),
                    {.batch_size = options.batch_size, .threads = options.threads});
  loader.begin();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

// PSS divides a page by the number of ranks that accessed it. Kernels differ in whether pages of a
// memfd count as those of a file.
double host_memory_of_cache(const SideOptions& options) {
  ProcessGroup world = init_process_group();
  const auto shared_megabytes = [&world] {
    std::ifstream rollup("/proc/self/smaps_rollup");
    double kilobytes = 0;
    for (std::string line; std::getline(rollup, line);)
      if (line.starts_with("Pss_Shmem:") || line.starts_with("Pss_File:"))
        kilobytes += std::stod(line.substr(line.find(':') + 1));
    world.all_reduce({.data = &kilobytes, .count = 1, .dtype = DType::float64});
    return kilobytes * 1024 / 1e6;
  };
  shared_megabytes();  // Makes the group's own memory resident.
  const double before = shared_megabytes();
  const ImageFolder images(
      options.data,
      {.transform = recipe(),
       .cache = HostCache{.bytes = std::size_t{64} << 20, .shorter_side = 256, .group = world}});
  DistributedSampler sampler(images.size(), world);
  DataLoader loader(images, sampler, world, {.batch_size = 8, .threads = 0});
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {  // This rank reads other samples in each.
    sampler.set_epoch(epoch);
    for (const Batch& batch : loader) loader.consume(batch);
  }
  world.barrier();
  const double grown = shared_megabytes() - before;
  world.barrier();
  destroy_process_group(world);
  return grown;
}

}  // namespace lockstep::bench
