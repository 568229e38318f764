// Tests of every backend, as bodies that a rank runs on a group of any size. Results are compared
// with a serial computation, bit for bit.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::test {

struct Conformance {
  std::string name;
  std::function<void(const ProcessGroup& group)> body;
};

const std::vector<Conformance>& conformance_suite();

}  // namespace lockstep::test
