// The header of an array that NumPy saved (.npy).
//
// Frozen (numpy.lib.format, versions 1.0, 2.0 and 3.0): "\x93NUMPY", u8 major, u8 minor, length of
// the text as u16 (1.0) or u32, and the text, a Python dict that ends with a newline:
//   {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28, 28), }
// The values follow.
//
// Torch-free, so that it can be fuzzed.
// Errors: corrupt, naming file, byte, expected and found; unsupported, with the remedy, for arrays
// in Fortran order, of big-endian numbers, of objects, or with named fields.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

struct NpyHeader {
  char kind = 'f';          // NumPy's letter: b, i, u, f or c.
  std::uint64_t width = 4;  // Bytes of a value: 1, 2, 4, 8 or 16, as the kind allows.
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;   // Offset of the first value, a multiple of `width`.
  std::uint64_t values = 1;  // Product of the shape; all of them are in the file.
};

// `bytes` is the whole file.
NpyHeader parse_npy_header(std::string_view file, std::span<const std::byte> bytes);

}  // namespace lockstep::data
