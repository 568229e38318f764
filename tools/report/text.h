// The report as text for a terminal.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/report/figures.h"

namespace lockstep::tools {

// `ranks`: of other_sizes().
std::string report_text(const Comparison& all, const std::vector<int>& ranks);

}  // namespace lockstep::tools
