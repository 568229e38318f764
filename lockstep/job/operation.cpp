// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/operation.h"

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
    case Operation::reduce:
      return "reduce";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::gather:
      return "gather";
    case Operation::scatter:
      return "scatter";
    case Operation::all_to_all:
      return "all_to_all";
    case Operation::send:
      return "send";
    case Operation::recv:
      return "recv";
    case Operation::monitored_barrier:
      return "monitored_barrier";
    case Operation::split:
      return "split";
    case Operation::destroy:
      return "destroy_process_group";
    case Operation::allocate_shared:
      return "allocate_shared";
  }
  return "unknown";
}

}  // namespace lockstep
