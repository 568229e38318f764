// The header of an array that NumPy saved (.npy).
//
// Frozen (numpy.lib.format, versions 1.0, 2.0 and 3.0): "\x93NUMPY", u8 major, u8 minor, length of
// the text as u16 (1.0) or u32, and the text, a Python dict that ends with a newline:
//   {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28, 28), }
// The values follow. Python 2 writes numbers as 28L. A type is all that numpy.dtype() takes for a
// number: '<f4', '=f4' and 'f4', 'float32', '<f'.
//
// Torch-free, so that it can be fuzzed.
// Errors: corrupt, naming file, byte, expected and found; unsupported, naming the type, for all
// types that tensors do not have: big-endian numbers, objects, named fields, dates, texts.

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
  bool fortran_order = false;  // The first index changes fastest.
  std::uint64_t begin = 0;     // Offset of the first value; not always a multiple of `width`.
  std::uint64_t values = 1;    // Product of the shape; all of them are in the file.
};

bool is_npy(std::span<const std::byte> bytes);

// `bytes` is the whole file.
NpyHeader parse_npy_header(std::string_view file, std::span<const std::byte> bytes);

}  // namespace lockstep::data
