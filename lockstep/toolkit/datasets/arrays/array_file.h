// A NumPy array (a .npy file, or a member of an .npz file) as a tensor.
//
//   const lockstep::ArrayFile x("x.npy"), y("data.npz", "y");
//   lockstep::TensorDataset train(x.tensor(), y.tensor());
//
// The file is mapped copy-on-write: all ranks of a host share the page cache; pages that a program
// writes become private. Arrays that are compressed, or whose values are not aligned, are read into
// memory instead.
//
// Types: bool, int8 to int64, uint8 to uint64, float16 to float64, complex64 and complex128. An
// array in Fortran order has NumPy's strides.
//
// Thread safety: const members may be called concurrently.
// Errors: corrupt for a damaged file. Unsupported for big-endian numbers, all other types, and
// encrypted arrays. Misuse, with the names in an .npz, unless `array` chooses one.
// System for an unreadable file, or too little memory.
// Lifetime: do not truncate the file while a tensor of it is in use: reads then raise SIGBUS.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// Copies share the mapping.
class LOCKSTEP_API ArrayFile {
 public:
  // `array` is a name in the .npz; may be empty if it has one array, and must be for a .npy.
  explicit ArrayFile(const std::filesystem::path& file, std::string_view array = {});

  // In file order; empty for a .npy.
  static std::vector<std::string> names(const std::filesystem::path& file);

  // Has NumPy's shape and type. The file stays mapped while the tensor or a view of it exists.
  const at::Tensor& tensor() const { return tensor_; }

  const std::string& name() const { return name_; }  // For messages.

 private:
  std::string name_;
  at::Tensor tensor_;
};

}  // namespace lockstep
