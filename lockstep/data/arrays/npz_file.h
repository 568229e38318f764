// Reader of .npz files of NumPy: zip archives with a file NAME.npy for each array.
//
// Does not depend on LibTorch.
// Errors: corrupt, with the file's name, for a damaged archive; unsupported for an encrypted array.

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

// Returns the arrays' names without ".npy". `bytes` is the contents of the whole file; `file` is
// its name for messages.
std::vector<std::string> names_in_npz(std::string_view file, std::span<const std::byte> bytes);

// Returns the contents of NAME.npy. For a stored member, the result is a part of `bytes`. A
// compressed member is inflated into the memory that `allocate(size)` returns, and its checksum is
// verified. `name` must be in the file.
std::span<const std::byte> array_in_npz(
    std::string_view file, std::span<const std::byte> bytes, std::string_view name,
    const std::function<std::span<std::byte>(std::uint64_t size)>& allocate);

}  // namespace lockstep::data
