// An array that NumPy saved (.npy), as a tensor without a copy.
//
//   const lockstep::ArrayFile x("x.npy"), y("y.npy");
//   lockstep::TensorDataset train(x.tensor(), y.tensor());
//
// The file is mapped, so all ranks of a host share one copy, the page cache's. A program may write
// to the tensor: the written pages become its own, the file stays as it is.
//
// Types: bool, int8 to int64, uint8 to uint64, float16 to float64, complex64 and complex128.
//
// Thread safety: any thread may call any const member at any time.
// Errors: corrupt, naming file, byte, expected and found; unsupported, with the remedy, for arrays
// in Fortran order, of big-endian numbers, of Python objects, or with named fields; system.
// Lifetime: the file must not become shorter while a tensor of it is read: the kernel then ends the
// process with SIGBUS.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

namespace data {
class MappedFile;
}

// A value type, whose copies share the mapping.
class LOCKSTEP_API ArrayFile {
 public:
  explicit ArrayFile(const std::filesystem::path& file);

  // The array, in the shape and type that NumPy shows. The file stays mapped while the tensor, or
  // a view of it, exists.
  const at::Tensor& tensor() const { return tensor_; }

  const std::string& name() const;

 private:
  std::shared_ptr<data::MappedFile> file_;
  at::Tensor tensor_;
};

}  // namespace lockstep
