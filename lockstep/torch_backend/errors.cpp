// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/errors.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/torch_backend/gil.h"

namespace lockstep::torch_backend {
namespace {

py::dict attributes_of(const Error& error) {
  py::dict known;
  known["fault"] = std::string(name(error.fault()));
  known["ranks"] = error.ranks();
  if (const auto& failure = error.failure()) {
    known["rank"] = failure->rank;
    known["host"] = failure->host;
    known["pid"] = failure->pid;
    known["signal"] = failure->signal;
    known["exit_code"] = failure->exit_code;
    known["operation"] = failure->operation;
    known["what"] = failure->what;
  } else if (!error.ranks().empty()) {
    known["rank"] = error.ranks().front();
  }
  return known;
}

// Requires the GIL.
python_error exception_of(const Error& error) {
  python_error result;
  try {
    const py::object type = py::module_::import("lockstep._errors").attr("Error");
    const py::object value = type(error.what(), **attributes_of(error));
    PyErr_SetObject(type.ptr(), value.ptr());
  } catch (py::error_already_set& failure) {
    failure.restore();
  }
  result.persist();
  return result;
}

}  // namespace

std::exception_ptr in_python(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    if (!Py_IsInitialized()) return error;
    const WithGil gil;
    return std::make_exception_ptr(exception_of(known));
  } catch (...) {
    return error;
  }
}

void throw_if_interrupted() {
  if (!Py_IsInitialized() || PyGILState_GetThisThreadState() == nullptr) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  python_error interrupt;
  interrupt.persist();
  throw interrupt;
}

void rethrow_in_python(const std::exception_ptr& error) {
  throw_if_interrupted();
  std::rethrow_exception(in_python(error));
}

}  // namespace lockstep::torch_backend
