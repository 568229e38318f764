// The class ElasticSteps of Python's lockstep._C, for lockstep.Survival.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace lockstep::torch_backend {

void bind_elastic_group(py::module_& module);

}  // namespace lockstep::torch_backend
