// MPI's types and operations for DType and ReduceOp, where both mean the same.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/core/dtype.h"
#include "lockstep/comm/core/reduce_op.h"
#include "lockstep/comm/engine/mpi/library.h"

namespace lockstep::mpi {

// Returns MPI_DATATYPE_NULL for float16 and bfloat16, which MPI does not have.
MPI_Datatype type_of(DType dtype);

// Returns the operation for elements of type_of(dtype). MPI_OP_NULL where MPI's result may differ
// from Lockstep's: averages; types that MPI does not have; min and max of floating-point numbers,
// which may lose a NaN; sums of 8- and 16-bit integers, which may not wrap.
MPI_Op op_of(DType dtype, ReduceOp op);

}  // namespace lockstep::mpi
