// A dataset of two tensors in memory. Gathers, converts, normalises and lays out (channels_last) a
// batch in one pass.
//
// Thread safety: const members may run concurrently.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/data/batch_dataset.h"

namespace lockstep {

// As torchvision's Normalize: (value - mean) / std. Both have one entry per channel, a sample's
// first dimension, or are empty.
struct TensorDatasetOptions {
  std::vector<double> mean = {};
  std::vector<double> std = {};
};

// Copies share the tensors.
class LOCKSTEP_API TensorDataset : public BatchDataset {
 public:
  // `data` and `target` are [N, ...], dense, on the CPU; contiguous tensors are not copied. uint8
  // data become floats, value / 255, as by torchvision's ToTensor. Other types do not change; of
  // these, only float can be normalised. Errors: misuse.
  TensorDataset(at::Tensor data, at::Tensor target, TensorDatasetOptions options = {});

  std::size_t size() const override;
  SampleSpec data_spec() const override;
  SampleSpec target_spec() const override;
  void fill(const BatchRows& rows) const override;
  std::string sample_name(std::size_t index) const override;

  const at::Tensor& data() const { return data_; }
  const at::Tensor& target() const { return target_; }

 private:
  at::Tensor data_;
  at::Tensor target_;
  std::vector<float> table_;  // For normalised uint8 data: 256 values per channel.
  std::vector<float> mean_;
  std::vector<float> std_;
};

}  // namespace lockstep
