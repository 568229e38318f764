// The bytes of a tar archive around the contents of its files, in GNU tar's format: names of any
// bytes and any length, and files of any size.
//
// Torch-free.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::data {

// The headers in front of a file's contents. No times and no owners; anybody may read.
std::string tar_headers(std::string_view name, std::uint64_t size);

// Bytes that a file takes: headers, contents, and padding.
std::uint64_t tar_bytes(std::string_view name, std::uint64_t size);

// Two blocks of zeros. tar(1) would fill up to 20 blocks; readers need two.
inline constexpr std::uint64_t tar_end_bytes = 1024;
std::string tar_end();

}  // namespace lockstep::data
