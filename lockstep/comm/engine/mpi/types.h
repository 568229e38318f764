// DType and ReduceOp in MPI's terms, where MPI has what Lockstep means.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/core/dtype.h"
#include "lockstep/comm/core/reduce_op.h"
#include "lockstep/comm/engine/mpi/library.h"

namespace lockstep::mpi {

// MPI_DATATYPE_NULL for float16 and bfloat16, which MPI does not know.
MPI_Datatype type_of(DType dtype);

// How elements of type_of(dtype) are combined. MPI_OP_NULL where MPI cannot or need not do as
// Lockstep does: averages; types that it does not know; min and max of floating-point numbers,
// which may lose a NaN; sums of integers of 8 and 16 bits, which may not wrap.
MPI_Op op_of(DType dtype, ReduceOp op);

}  // namespace lockstep::mpi
