// Sums over ranks of results that are made in registered memory, so that no byte is copied.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Calls `collective`. Its mismatches, timeouts and lost peers say "in `name`": comm's messages show
// labels only where they differ.
template <class Collective>
auto naming_errors(const std::string& name, const Collective& collective) {
  try {
    return collective();
  } catch (const Error& error) {
    if (error.failure()) {
      std::string text = bare_text(error);
      text.resize(std::min(text.size(), text.rfind(": " + describe(*error.failure()))));
      throw Error("in " + name + ": " + text, *error.failure());
    }
    if (error.fault() != Fault::mismatch && error.fault() != Fault::timeout) throw;
    throw Error(error.fault(), "in " + name + ": " + bare_text(error), error.ranks());
  }
}

// The sum of all ranks' values, which write(tensor) puts into a new contiguous tensor of these
// sizes and this type. The tensor is in the group's RegisteredPool if there is room. Collective:
// sizes and type are the same on all ranks. Requires: autograd is off. Errors: as
// ProcessGroup::all_reduce().
at::Tensor summed(at::IntArrayRef sizes, const at::TensorOptions& type, const ProcessGroup& group,
                  const CallOptions& options, c10::function_ref<void(const at::Tensor&)> write);

}  // namespace lockstep
