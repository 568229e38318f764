// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/mpi/types.h"

namespace lockstep::comm::mpi {
namespace {

// For bytes where every value but 0 is true, as in C. The result is 0 or 1.
MPI_Op op_of_booleans(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::max:
    case ReduceOp::bor:
      return MPI_LOR;
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::band:
      return MPI_LAND;
    case ReduceOp::bxor:
      return MPI_LXOR;
    case ReduceOp::average:
      break;
  }
  return MPI_OP_NULL;
}

MPI_Op op_of_floats(ReduceOp op) {
  if (op == ReduceOp::sum) return MPI_SUM;
  return op == ReduceOp::product ? MPI_PROD : MPI_OP_NULL;
}

MPI_Op op_of_integers(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return MPI_SUM;
    case ReduceOp::product:
      return MPI_PROD;
    case ReduceOp::min:
      return MPI_MIN;
    case ReduceOp::max:
      return MPI_MAX;
    case ReduceOp::band:
      return MPI_BAND;
    case ReduceOp::bor:
      return MPI_BOR;
    case ReduceOp::bxor:
      return MPI_BXOR;
    case ReduceOp::average:
      break;
  }
  return MPI_OP_NULL;
}

}  // namespace

MPI_Datatype type_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return MPI_FLOAT;
    case DType::float64:
      return MPI_DOUBLE;
    case DType::int8:
      return MPI_INT8_T;
    case DType::int16:
      return MPI_INT16_T;
    case DType::int32:
      return MPI_INT32_T;
    case DType::int64:
      return MPI_INT64_T;
    case DType::uint8:
    case DType::boolean:  // Not MPI_C_BOOL, for which a byte of 2 would be undefined.
      return MPI_UINT8_T;
    case DType::uint16:
      return MPI_UINT16_T;
    case DType::uint32:
      return MPI_UINT32_T;
    case DType::uint64:
      return MPI_UINT64_T;
    case DType::float16:
    case DType::bfloat16:
      break;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op op_of(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::float32:
    case DType::float64:
      return op_of_floats(op);
    case DType::boolean:
      return op_of_booleans(op);
    case DType::float16:
    case DType::bfloat16:
      return MPI_OP_NULL;
    case DType::int8:
    case DType::int16:
    case DType::uint8:
    case DType::uint16:
      // Open MPI 4 and 5 saturate on processors with AVX.
      return op == ReduceOp::sum ? MPI_OP_NULL : op_of_integers(op);
    case DType::int32:
    case DType::int64:
    case DType::uint32:
    case DType::uint64:
      return op_of_integers(op);
  }
  return MPI_OP_NULL;
}

void Messages::wait() {
  std::vector<MPI_Status> statuses(requests_.size());
  const int result =
      MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), statuses.data());
  if (result == MPI_ERR_IN_STATUS)
    for (const MPI_Status& status : statuses)
      if (status.MPI_ERROR != MPI_ERR_PENDING) check(status.MPI_ERROR, "MPI_Waitall");
  check(result, "MPI_Waitall");
}

}  // namespace lockstep::comm::mpi
