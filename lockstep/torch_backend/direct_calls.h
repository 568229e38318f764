// Collectives that Python calls without torch.distributed.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace lockstep::torch_backend {

void bind_direct_calls(py::module_& module);

}  // namespace lockstep::torch_backend
