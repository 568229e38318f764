// Output of the commands, and its wording.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "lockstep/tensor/state_types.h"
#include "tools/standard_output.h"

namespace lockstep::checkpoint {

// Exit codes of sysexits.h.
inline constexpr int usage_error = 64;
inline constexpr int data_error = 65;
inline constexpr int no_input = 66;
inline constexpr int internal_error = 70;
inline constexpr int cannot_create = 73;
inline constexpr int io_error = 74;

using tools::flush_output;
using tools::print;

std::string bytes_text(std::uint64_t bytes);             // Such as "12.3 MB".
std::string count_text(std::size_t count, const char*);  // Such as "3 files".
std::string dtype_of(const at::Tensor& tensor);          // Python's name: "float32".
std::string type_text(const at::Tensor& tensor);         // Such as "float32 [2, 3]".
std::string value_text(const StateValue& value);

}  // namespace lockstep::checkpoint
