// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/elastic_bindings.h"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/elastic_group.h"
#include "lockstep/comm/elastic_steps.h"
#include "lockstep/comm/values.h"
#include "lockstep/job/launchers.h"

namespace lockstep::torch_backend {
namespace {

// Errors of torch.distributed's store and of other backends have no fault. They count as peer_lost:
// the next agreement verifies it.
Fault fault_of(const py::error_already_set& error) {
  const py::object fault = py::getattr(error.value(), "fault", py::none());
  if (!py::isinstance<py::str>(fault)) return Fault::peer_lost;
  return fault_named(fault.cast<std::string>()).value_or(Fault::bug);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Exceptions after which the group can continue become Errors; others keep their type.
template <class Call>
void calling_python(Call call) {
  const py::gil_scoped_acquire lock;
  try {
    call();
  } catch (py::error_already_set& error) {
    if (!error.matches(py::module_::import("torch.distributed").attr("DistError"))) throw;
    const Error known(fault_of(error), first_line(py::str(error.value())));
    if (!can_continue_after(known)) throw;
    throw known;
  }
}

// lockstep._survival.Objects. Callers do not hold the GIL.
class PythonObjects final : public TrainingObjects {
 public:
  explicit PythonObjects(py::object objects) : objects_(std::move(objects)) {}
  ~PythonObjects() override {
    const py::gil_scoped_acquire lock;
    objects_ = py::object();
  }
  PythonObjects(const PythonObjects&) = delete;
  PythonObjects& operator=(const PythonObjects&) = delete;

  void copy() override {
    calling_python([&] { objects_.attr("copy")(); });
  }
  void make(ProcessGroup& group, bool restores) override {
    calling_python([&] {
      objects_.attr("make")(py::cast(&group, py::return_value_policy::reference), restores);
    });
  }
  void require_whole(ProcessGroup&) override {
    calling_python([&] { objects_.attr("require_whole")(); });
  }
  void send(ProcessGroup&, int to) override {
    calling_python([&] { objects_.attr("send")(to); });
  }
  void receive(ProcessGroup&, int from) override {
    calling_python([&] { objects_.attr("receive")(from); });
  }
  void save(std::int64_t step) override {
    calling_python([&] { objects_.attr("save")(step); });
  }
  std::optional<std::int64_t> load() override {
    std::optional<std::int64_t> step;
    calling_python([&] { step = objects_.attr("load")().cast<std::optional<std::int64_t>>(); });
    return step;
  }

 private:
  py::object objects_;
};

class PythonSteps {
 public:
  PythonSteps(py::object objects, const ElasticOptions& options, std::int64_t save_every)
      : objects_(std::move(objects)), steps_(objects_, options, save_every) {}

  ElasticSteps& steps() { return steps_; }

  bool step(const py::object& compute, const py::object& apply) {
    const py::gil_scoped_release unlocked;
    return steps_.step([&] { calling_python([&] { compute(); }); },
                       [&] { calling_python([&] { apply(); }); });
  }

 private:
  PythonObjects objects_;
  ElasticSteps steps_;
};

std::unique_ptr<PythonSteps> make(py::object objects, std::chrono::milliseconds timeout,
                                  std::chrono::milliseconds patience, int least,
                                  std::int64_t save_every) {
  ElasticOptions options;
  options.init.timeout = timeout;
  options.patience = patience;
  options.least = least;
  const py::gil_scoped_release unlocked;
  return std::make_unique<PythonSteps>(std::move(objects), options, save_every);
}

}  // namespace

void bind_elastic_group(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<ProcessGroup>(module, "ElasticWorld")
      .def_property_readonly("rank", &ProcessGroup::rank)
      .def_property_readonly("size", &ProcessGroup::size)
      .def(
          "broadcast",
          [](const ProcessGroup& group, const std::string& text) {
            return broadcast_bytes(text, group);
          },
          py::arg("text"), Release());
  module.def("straggler_limit", &straggler_limit);
  py::class_<PythonSteps>(module, "ElasticSteps")
      .def(py::init(&make), py::arg("objects"), py::kw_only(), py::arg("timeout"),
           py::arg("patience"), py::arg("least"), py::arg("save_every"))
      .def(
          "begin", [](PythonSteps& steps) { steps.steps().begin(); }, Release())
      .def("step", &PythonSteps::step, py::arg("compute"), py::arg("apply"))
      .def(
          "finish", [](PythonSteps& steps) { steps.steps().finish(); }, Release())
      .def_property_readonly("steps", [](PythonSteps& steps) { return steps.steps().steps(); })
      .def_property_readonly("has_left",
                             [](PythonSteps& steps) { return steps.steps().has_left(); })
      .def_property_readonly("changes", [](PythonSteps& steps) { return steps.steps().changes(); })
      .def_property_readonly("scale", [](PythonSteps& steps) { return steps.steps().scale(); });
}

}  // namespace lockstep::torch_backend
