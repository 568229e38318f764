// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "bench/data/sides.h"
#include "lockstep/lockstep.h"

namespace lockstep::bench {
namespace {

// The usual chain of training on ImageNet.
ImageTransform recipe() {
  return RandomResizedCrop(224) | RandomHorizontalFlip() |
         Normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
}

double images_us(const SideOptions& options, const std::optional<HostCache>& cache) {
  const ImageFolder images(options.data, {.transform = recipe(), .cache = cache});
  DistributedSampler sampler(images.size(), 1, 0);
  Loader loader(images, sampler,
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
  sink = sum;  // So that no batch may be left out.
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
  Loader loader(images, DistributedSampler(images.size(), 1, 0),
                {.batch_size = options.batch_size, .threads = options.threads});
  loader.begin();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

}  // namespace lockstep::bench
