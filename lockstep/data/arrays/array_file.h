// An array that NumPy saved (.npy, or one of an .npz), as a tensor, without a copy where possible.
//
//   const lockstep::ArrayFile x("x.npy"), y("data.npz", "y");
//   lockstep::TensorDataset train(x.tensor(), y.tensor());
//
// The file is mapped, so all ranks of a host share one copy, the page cache's. A program may write
// to the tensor: the written pages become its own, the file stays as it is. An array is read into
// memory if an .npz has it deflated, as numpy.savez_compressed() writes it, or if its values lie at
// an offset that is no multiple of their size, as often in an .npz.
//
// Types: bool, int8 to int64, uint8 to uint64, float16 to float64, complex64 and complex128. An
// array in Fortran order has the strides that NumPy shows.
//
// Thread safety: any thread may call any const member at any time.
// Errors: corrupt, naming file, byte, expected and found; unsupported, naming the type, for
// big-endian numbers, Python objects, named fields, dates and texts; misuse, listing the names, for
// an array that an .npz does not have; system.
// Lifetime: the file must not become shorter while a tensor of it is read: the kernel then ends the
// process with SIGBUS.

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

// A value type, whose copies share the mapping.
class LOCKSTEP_API ArrayFile {
 public:
  // `array` names one of an .npz, as in numpy.load(file)[array]. It may be empty for a .npy, and
  // for an .npz with a single array.
  explicit ArrayFile(const std::filesystem::path& file, std::string_view array = {});

  // The names of the arrays in an .npz, in its order; empty for a .npy.
  static std::vector<std::string> names(const std::filesystem::path& file);

  // The array, in the shape and type that NumPy shows. The file stays mapped while the tensor, or
  // a view of it, exists.
  const at::Tensor& tensor() const { return tensor_; }

  const std::string& name() const { return name_; }  // For messages.

 private:
  std::string name_;
  at::Tensor tensor_;
};

}  // namespace lockstep
