// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/operation.h"

namespace lockstep {

std::string_view name(Operation operation) {
  switch (operation) {
    case Operation::none:
      return "none";
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::broadcast:
      return "broadcast";
    case Operation::all_gather:
      return "all_gather";
    case Operation::barrier:
      return "barrier";
    case Operation::allocate:
      return "allocate";
  }
  return "unknown";
}

std::string_view name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::average:
      return "average";
    case ReduceOp::product:
      return "product";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
  }
  return "unknown";
}

}  // namespace lockstep
