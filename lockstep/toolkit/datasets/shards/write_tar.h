// Creates headers in GNU tar's format, for names of any bytes and length, and files of any size.
// Independent of LibTorch.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::datasets {

// The headers before a file's contents: no times, no owners, readable by everyone.
std::string tar_headers(std::string_view name, std::uint64_t size);

// Headers, contents and padding.
std::uint64_t tar_bytes(std::string_view name, std::uint64_t size);

// Two blocks of zeros. tar(1) would write up to 20.
inline constexpr std::uint64_t tar_end_bytes = 1024;
std::string tar_end();

}  // namespace lockstep::datasets
