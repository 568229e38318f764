// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/direct_calls.h"

#include <ATen/core/Tensor.h>
#include <pybind11/gil_safe_call_once.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch_backend/backend.h"
#include "lockstep/torch_backend/gil.h"

namespace lockstep::torch_backend {
namespace {

py::object default_group() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::module_> kept;
  const auto& module = kept.call_once_and_store_result([] {
                             return py::module_::import("torch.distributed.distributed_c10d");
                           })
                           .get_stored();
  py::object group = module.attr("_world").attr("default_pg");
  require(!group.is_none(), "all_reduce_: call init_process_group(\"lockstep\")");
  return group;
}

// TORCH_DISTRIBUTED_DEBUG=DETAIL wraps backends.
c10::intrusive_ptr<Backend> unwrapped(py::object backend) {
  while (py::hasattr(backend, "wrapped_pg")) backend = backend.attr("wrapped_pg");
  require(py::isinstance<Backend>(backend), [&] {
    return "all_reduce_: the group's backend for CPUs is " +
           std::string(py::str(backend.attr("name")())) + ", not lockstep: call dist.all_reduce()";
  });
  return backend.cast<c10::intrusive_ptr<Backend>>();
}

c10::intrusive_ptr<Backend> backend_of(const py::object& group) {
  py::detail::make_caster<c10d::ProcessGroup> known;
  require(known.load(group, /*convert=*/false), "all_reduce_: `group` is no group with this rank");
  auto backend = py::detail::cast_op<c10d::ProcessGroup&>(known).getBackend(c10::DeviceType::CPU);
  if (dynamic_cast<Backend*>(backend.get()) == nullptr) return unwrapped(py::cast(backend));
  return c10::static_intrusive_pointer_cast<Backend>(std::move(backend));
}

at::Tensor all_reduce_(const at::Tensor& tensor, const py::object& group) {
  auto backend = backend_of(group.is_none() ? default_group() : group);
  const WithoutGil without_gil;
  const auto used = std::move(backend);  // Its destructor may wait.
  used->all_reduce_(tensor);
  return tensor;
}

}  // namespace

void bind_direct_calls(py::module_& module) {
  module.def("all_reduce_", &all_reduce_, py::arg("tensor"), py::arg("group") = py::none(),
             R"(Replaces a tensor by the sum of all ranks' tensors, and returns it.

    y = lockstep.all_reduce_(part(x))

The same as torch.distributed.all_reduce(tensor, group=group), in one order with a group's other
calls, but with a fifth of its cost in Python.

tensor  Contiguous, dense, in CPU memory.
group   A group of backend "lockstep"; the default group if None.

Raises lockstep.Error as all_reduce(), and for other tensors and groups.)");
}

}  // namespace lockstep::torch_backend
