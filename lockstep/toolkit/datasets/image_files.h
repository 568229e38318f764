// Readers of IDX files, plain or compressed by gzip, and CIFAR. Errors: as image_datasets.h.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep::datasets {

struct IdxArray {
  std::vector<std::uint32_t> shape;  // 1 to 8 dimensions, outermost first.
  std::vector<std::uint8_t> values;  // Row-major.
};

// Detects gzip by the contents: browsers decompress a .gz and keep its name.
// Errors: also unsupported for elements other than unsigned bytes.
LOCKSTEP_API IdxArray read_idx(const std::filesystem::path& file);

inline constexpr int cifar_channels = 3;  // Red, green, blue, each 32 rows of 32 values.
inline constexpr int cifar_side = 32;

// In one file. Published files have at most 50,000 (CIFAR-100's train.bin).
inline constexpr std::uint64_t most_cifar_images = 1'000'000;

// The binary versions of CIFAR-10 and CIFAR-100 (https://www.cs.toronto.edu/~kriz/cifar.html).
struct CifarImages {
  std::vector<std::uint8_t> pixels;         // 3 * 32 * 32 values per image.
  std::vector<std::uint8_t> labels;         // 0..9, or 0..99 in CIFAR-100.
  std::vector<std::uint8_t> coarse_labels;  // 0..19; empty for CIFAR-10.
};

// Reads all files in order.
LOCKSTEP_API CifarImages read_cifar10(const std::vector<std::filesystem::path>& files);
LOCKSTEP_API CifarImages read_cifar100(const std::vector<std::filesystem::path>& files);

}  // namespace lockstep::datasets
