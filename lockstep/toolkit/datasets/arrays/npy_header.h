// Parser of the header of a .npy file. Independent of LibTorch, for fuzzing.
//
// Frozen (numpy.lib.format, versions 1.0, 2.0 and 3.0): "\x93NUMPY", u8 major, u8 minor. The text's
// length follows as u16 (1.0) or u32, then the text, a Python dict with a newline:
//   {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28, 28), }
// The values follow. Python 2 writes integers as 28L. The type may have any form of numpy.dtype()
// for a number: '<f4', '=f4', 'f4', 'float32' or '<f'.
//
// Errors: as ArrayFile.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::datasets {

struct NpyHeader {
  char kind = 'f';          // NumPy's type letter: b, i, u, f or c.
  std::uint64_t width = 4;  // Bytes of a value: 1, 2, 4, 8 or 16.
  std::vector<std::int64_t> shape;
  bool fortran_order = false;  // Whether the first index changes fastest.
  std::uint64_t begin = 0;     // Offset of the first value; may be unaligned.
  std::uint64_t values = 1;    // Product of the shape.
};

bool is_npy(std::span<const std::byte> bytes);

// `bytes`: the whole .npy.
NpyHeader parse_npy_header(std::string_view file, std::span<const std::byte> bytes);

}  // namespace lockstep::datasets
