// A buffer in MPI's terms: types, reductions, and chunks that fit one call.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/engine/mpi/library.h"
#include "lockstep/comm/engine/plugin_parts.h"

// Bytes. Tests set a small value.
#ifndef LOCKSTEP_MPI_LARGEST_CALL
#define LOCKSTEP_MPI_LARGEST_CALL (std::size_t{1} << 30)
#endif

namespace lockstep::comm::mpi {

// --- Types and reductions, where both mean the same ----------------------------------------------

// MPI_DATATYPE_NULL for float16 and bfloat16, which MPI does not have.
MPI_Datatype type_of(DType dtype);

// For elements of type_of(dtype). MPI_OP_NULL where MPI's result may differ from Lockstep's:
// averages, types that MPI lacks, min and max of floating-point numbers, sums of short integers.
// MPI may lose a NaN, and saturate.
MPI_Op op_of(DType dtype, ReduceOp op);

// Well below INT_MAX, because libraries multiply counts by sizes.
constexpr std::size_t largest_call = LOCKSTEP_MPI_LARGEST_CALL;

// Calls act(begin, elements) for each chunk; elements have `element` bytes.
template <class Act>
void in_chunks(const plugin::Part& part, std::size_t element, Act act) {
  const std::size_t most = largest_call / element * element;
  for (std::size_t begin = 0; begin < part.bytes; begin += most)
    act(part.data + begin, static_cast<int>(std::min(most, part.bytes - begin) / element));
}

// In units of `unit` bytes; for a total of at most largest_call.
inline std::vector<int> as_ints(const std::vector<std::size_t>& bytes, std::size_t unit = 1) {
  std::vector<int> all;
  all.reserve(bytes.size());
  for (const std::size_t each : bytes) all.push_back(static_cast<int>(each / unit));
  return all;
}

class Messages {
 public:
  void add(MPI_Request request) { requests_.push_back(request); }
  void wait();

 private:
  std::vector<MPI_Request> requests_;
};

}  // namespace lockstep::comm::mpi
