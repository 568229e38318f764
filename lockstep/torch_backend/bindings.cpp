// Python's module lockstep._C.

// SPDX-License-Identifier: Apache-2.0
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/job/environment.h"
#include "lockstep/job/launchers.h"
#include "lockstep/job/record.h"
#include "lockstep/torch_backend/backend.h"
#include "lockstep/torch_backend/direct_calls.h"
#include "lockstep/torch_backend/elastic_bindings.h"
#include "lockstep/torch_backend/errors.h"
#include "lockstep/torch_backend/interrupts.h"
#include "lockstep/torch_backend/job_store.h"
#include "lockstep/torch_backend/launcher_notices.h"
#include "lockstep/torch_backend/membership.h"
#include "lockstep/torch_backend/registered_allocator.h"
#include "lockstep/torch_backend/torch_engine.h"

namespace {

using lockstep::torch_backend::Backend;
using lockstep::torch_backend::BackendOptions;
using lockstep::torch_backend::Membership;
using lockstep::torch_backend::Place;
using lockstep::torch_backend::RegisteredAllocator;
using lockstep::torch_backend::RegisteredTensors;

c10::intrusive_ptr<Backend> make_backend(
    c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout,
    std::string name, std::vector<std::int64_t> global_ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const bool is_job = global_ranks.empty();
  return c10::make_intrusive<Backend>(Place{.store = std::move(store),
                                            .rank = rank,
                                            .size = size,
                                            .timeout = timeout,
                                            .name = std::move(name),
                                            .global_ranks = std::move(global_ranks),
                                            .is_job = is_job},
                                      options);
}

void end_with_exception(const std::string& text, const std::string& traceback,
                        const std::string& fault) {
  Membership::fail_process(text);
  lockstep::torch_backend::tell_launcher_of_end(text, lockstep::fault_named(fault));
  lockstep::record_last_exception(text, traceback, lockstep::fault_named(fault));
}

// For our own members. LibTorch's need Python exceptions.
void translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(lockstep::torch_backend::in_python(error));
  } catch (python_error& known) {
    known.restore();
  }
}

bool is_registered(const at::Tensor& tensor) {
  const RegisteredAllocator* const memory = RegisteredAllocator::find();
  return memory != nullptr && memory->contains(tensor);
}

// Another thread may try to end this `with` statement.
class RegisteredMemoryScope {
 public:
  explicit RegisteredMemoryScope(bool required)
      : demand_(required ? RegisteredTensors::Demand::always
                         : RegisteredTensors::Demand::if_there_is_memory) {}

  void begin() {
    lockstep::require(!thread_, "registered_memory: it is in use already");
    if (demand_ == RegisteredTensors::Demand::always) {
      const RegisteredAllocator* const memory = RegisteredAllocator::find();
      lockstep::require(memory != nullptr && memory->is_open(),
                        "registered memory: this process is in no group of backend lockstep");
    }
    outer_ = RegisteredTensors::exchange(demand_);
    thread_ = std::this_thread::get_id();
  }

  void end() {
    lockstep::require(thread_ == std::this_thread::get_id(),
                      "registered_memory: it ends on the thread on which it began");
    RegisteredTensors::exchange(outer_);
    thread_.reset();
  }

 private:
  const RegisteredTensors::Demand demand_;
  RegisteredTensors::Demand outer_ = RegisteredTensors::Demand::none;
  std::optional<std::thread::id> thread_;
};

// A store serves one call at a time; another reference's holder may be waiting in one.
bool is_in_use(const c10::intrusive_ptr<c10d::Store>& store) { return store.use_count() > 1; }

// In a forked child, the destructor would wait for the parent's threads.
void never_destroy(c10::intrusive_ptr<c10d::Store> store) { static_cast<void>(store.release()); }

}  // namespace

PYBIND11_MODULE(_C, module) {
  py::module_::import("torch.distributed");  // Defines our base classes.
  py::register_exception_translator(translate);
  lockstep::torch_backend::bring_torch_engine();

  py::class_<BackendOptions, c10d::Backend::Options, c10::intrusive_ptr<BackendOptions>>(module,
                                                                                         "Options")
      .def(py::init([](std::string interface, std::string transport) {
             auto options = c10::make_intrusive<BackendOptions>();
             options->interface = std::move(interface);
             options->transport = std::move(transport);
             return options;
           }),
           py::kw_only(), py::arg("interface") = "", py::arg("transport") = "")
      .def_readwrite("interface", &BackendOptions::interface)
      .def_readwrite("transport", &BackendOptions::transport)
      .def("__repr__", [](const BackendOptions& options) {
        return py::str("lockstep.Options(interface={!r}, transport={!r})")
            .format(options.interface, options.transport);
      });

  py::class_<Backend, c10d::Backend, c10::intrusive_ptr<Backend>>(module, "Backend")
      .def(py::init(&make_backend), py::arg("store"), py::arg("rank"), py::arg("size"),
           py::arg("timeout"), py::arg("name"), py::arg("global_ranks"), py::arg("options"),
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("options", &Backend::options);

  py::class_<RegisteredMemoryScope>(module, "registered_memory")
      .def(py::init<bool>(), py::kw_only(), py::arg("required") = true)
      .def("__enter__", &RegisteredMemoryScope::begin)
      .def("__exit__", [](RegisteredMemoryScope& scope, const py::args&) { scope.end(); });
  module.def("is_registered", &is_registered, py::arg("tensor"));

  py::class_<lockstep::LaunchEnvironment>(module, "LaunchEnvironment")
      .def_readonly("launcher", &lockstep::LaunchEnvironment::launcher)
      .def_readonly("rank", &lockstep::LaunchEnvironment::rank)
      .def_readonly("world_size", &lockstep::LaunchEnvironment::world_size)
      .def_readonly("local_rank", &lockstep::LaunchEnvironment::local_rank)
      .def_readonly("local_world_size", &lockstep::LaunchEnvironment::local_world_size)
      .def_readonly("job_id", &lockstep::LaunchEnvironment::job_id)
      .def_readonly("master", &lockstep::LaunchEnvironment::master);
  module.def("launch_environment", [] { return lockstep::read_environment(); });
  module.def("is_launched", &lockstep::is_launched);

  lockstep::torch_backend::bind_direct_calls(module);
  lockstep::torch_backend::bind_elastic_group(module);

  module.def("catch_interrupts", &lockstep::torch_backend::catch_interrupts);
  module.def("throw_if_launcher_lost_rank", &lockstep::torch_backend::throw_if_launcher_lost_rank,
             py::call_guard<py::gil_scoped_release>());
  module.def("connect_to_store", &lockstep::torch_backend::connect_to_store, py::arg("host"),
             py::arg("port"), py::arg("world_size"), py::arg("use_libuv"), py::arg("attempt"),
             py::arg("timeout"), py::call_guard<py::gil_scoped_release>());
  module.def("is_in_use", &is_in_use, py::arg("store"));
  module.def("never_destroy", &never_destroy, py::arg("store"));
  module.def("throw_without_store", &lockstep::torch_backend::throw_without_store, py::arg("place"),
             py::arg("timeout"), py::arg("reason"), py::call_guard<py::gil_scoped_release>());
  module.def("end_with_exception", &end_with_exception, py::arg("text"), py::arg("traceback"),
             py::arg("fault") = "", py::call_guard<py::gil_scoped_release>());
  module.def("end_with_exit_code", &Membership::fail_process, py::arg("text"),
             py::call_guard<py::gil_scoped_release>());
  module.def("count_step", &Membership::count_step, py::call_guard<py::gil_scoped_release>());
  module.def("leave_all", &Membership::leave_all, py::call_guard<py::gil_scoped_release>());
  module.def("leave_all_at_exit", &Membership::leave_all_at_exit,
             py::call_guard<py::gil_scoped_release>());
}
