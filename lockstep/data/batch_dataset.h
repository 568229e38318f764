// The interface of datasets for lockstep::DataLoader: they write samples directly into a batch's
// rows.
//
// Thread safety: const members must allow concurrent calls.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// Random numbers that depend only on seed, epoch and sample. The generator is Philox 4x32-10
// (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
class LOCKSTEP_API SampleRandom {
 public:
  SampleRandom(std::uint64_t seed, std::int64_t epoch, std::size_t sample);

  // Uniform in [from, to), with 53 random bits.
  double uniform(double from = 0, double to = 1);

  // Uniform in [0, count), without bias. `count` is positive.
  std::int64_t below(std::int64_t count);

 private:
  std::uint64_t bits();

  at::Philox4_32 engine_;
};

// One sample's data or target. The batch adds a leading dimension.
struct SampleSpec {
  std::vector<std::int64_t> sizes;
  at::ScalarType type = at::kFloat;
};

// The rows of one fill(), one per index.
struct BatchRows {
  std::span<const std::size_t> indices;
  at::Tensor data;    // In the loader's memory format.
  at::Tensor target;  // Contiguous.
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;

  SampleRandom random(std::size_t row) const { return {seed, epoch, indices[row]}; }
};

class LOCKSTEP_API BatchDataset {
 public:
  virtual ~BatchDataset() = default;

  virtual std::size_t size() const = 0;
  virtual SampleSpec data_spec() const = 0;
  virtual SampleSpec target_spec() const = 0;

  // Writes all rows. Errors: any; the loop rethrows them as Error at this batch (data_loader.h).
  virtual void fill(const BatchRows& rows) const = 0;

  // Optional. Announces each batch's samples before fill() reads them on this rank, for
  // prefetching. Must not block.
  virtual void will_read(std::span<const std::size_t> /*indices*/) const {}

  // Optional, for messages: "train/cat/7.jpg", "train.bin: tokens 1024 to 2048".
  virtual std::string sample_name(std::size_t /*index*/) const { return {}; }
};

}  // namespace lockstep
