// The arrays in an .npz of NumPy: a zip archive with a file NAME.npy for each.
//
// Torch-free.
// Errors: corrupt, naming the file, for a damaged archive; unsupported for an encrypted array.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

bool is_zip(std::span<const std::byte> bytes);

// The arrays' names, without ".npy". `bytes` is the whole file, whose name is for messages.
std::vector<std::string> names_in_npz(std::string_view file, std::span<const std::byte> bytes);

// Returns the bytes of NAME.npy: of a stored one those in `bytes`, of a compressed one those that
// `allocate(size)` returns, filled and checked by their checksum. `name` must be in the file.
std::span<const std::byte> array_in_npz(
    std::string_view file, std::span<const std::byte> bytes, std::string_view name,
    const std::function<std::span<std::byte>(std::uint64_t size)>& allocate);

}  // namespace lockstep::data
