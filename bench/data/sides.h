// Lockstep's and LibTorch's ways to read samples, each timed separately.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace lockstep::bench {

struct SideOptions {
  std::size_t batch_size = 64;
  int threads = 0;
  std::string data = {};  // A file or folder, for sides that read one.
};

// Microseconds of CPU time of this process, including its threads, for `pass`, per sample. The
// first pass is not timed.
double cpu_us(std::size_t samples, const std::function<void()>& pass);

// In memory: 20,000 grey images of 28 x 28 bytes, in a new order, as floats.
double in_memory_by_loader(const SideOptions& options);
double in_memory_by_torch_data(const SideOptions& options);

// A training step of a small CNN on those images, in milliseconds: with batches from a DataLoader,
// or with one batch that is reused.
double step_with_loader(const SideOptions& options);
double step_with_cached_batch(const SideOptions& options);

// Windows of 1024 tokens in a new order, from a file of plain uint16: microseconds of CPU time of a
// batch. The first function reuses the same memory.
double tokens_by_file(const SideOptions& options);
double tokens_by_loader(const SideOptions& options);

// Images of a folder, decoded, and transformed as for training on ImageNet. The second function
// keeps decoded images in memory.
double images_by_image_folder(const SideOptions& options);
double images_by_host_cache(const SideOptions& options);

// Milliseconds from listing the folder to its first batch.
double first_batch_by_image_folder(const SideOptions& options);

// Memory growth in megabytes over all ranks of this host when they fill a HostCache.
double host_memory_of_cache(const SideOptions& options);

}  // namespace lockstep::bench
