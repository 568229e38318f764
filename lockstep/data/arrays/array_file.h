// A NumPy array (a .npy file, or a member of an .npz file) as a tensor.
//
//   const lockstep::ArrayFile x("x.npy"), y("data.npz", "y");
//   lockstep::TensorDataset train(x.tensor(), y.tensor());
//
// The file is mapped copy-on-write: all ranks of a host share the page cache, and pages that a
// program writes become private. Members of an .npz that are compressed, or not aligned to the size
// of a value, are read into memory instead.
//
// Types: bool, int8 to int64, uint8 to uint64, float16 to float64, complex64 and complex128. An
// array in Fortran order has NumPy's strides.
//
// Thread safety: any thread may call any const member at any time.
// Errors: corrupt for a damaged file, with file, byte, expected and found value. Unsupported, with
// the type, for big-endian numbers, Python objects, named fields, dates and texts. Misuse, with the
// list of names, for an array that the .npz does not contain. System.
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

// A value type. Copies share the mapping.
class LOCKSTEP_API ArrayFile {
 public:
  // `array` is a name in the .npz. It may be empty for a .npy, and for an .npz with one array.
  explicit ArrayFile(const std::filesystem::path& file, std::string_view array = {});

  // Names of the arrays in an .npz, in file order; empty for a .npy.
  static std::vector<std::string> names(const std::filesystem::path& file);

  // The array, with NumPy's shape and type. The file stays mapped while the tensor or a view of it
  // exists.
  const at::Tensor& tensor() const { return tensor_; }

  const std::string& name() const { return name_; }  // For messages.

 private:
  std::string name_;
  at::Tensor tensor_;
};

}  // namespace lockstep
