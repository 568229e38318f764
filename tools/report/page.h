// The report as one HTML page without external resources.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/report/figures.h"

namespace lockstep::tools {

// `ranks`: of other_sizes(). Without scripts, the page shows report_text().
std::string report_page(const Comparison& all, const std::vector<int>& ranks);

}  // namespace lockstep::tools
