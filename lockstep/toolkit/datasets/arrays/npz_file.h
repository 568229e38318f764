// Reads NumPy's .npz files: zip archives of NAME.npy files. Independent of LibTorch.
//
// Errors: corrupt for a damaged archive; unsupported for an encrypted array.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::datasets {

bool is_zip(std::span<const std::byte> bytes);

// Without ".npy". `bytes` is the whole file; `file` is for messages.
std::vector<std::string> names_in_npz(std::string_view file, std::span<const std::byte> bytes);

// Contents of NAME.npy, which must exist. A stored member is a part of `bytes`. A compressed one is
// inflated into memory from `allocate(size)`, and its checksum is verified.
std::span<const std::byte> array_in_npz(
    std::string_view file, std::span<const std::byte> bytes, std::string_view name,
    const std::function<std::span<std::byte>(std::uint64_t size)>& allocate);

}  // namespace lockstep::datasets
