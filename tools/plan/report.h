// Formats predicted layouts as a table for people and as JSON.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/toolkit/plan/model_profile.h"
#include "tools/plan/layouts.h"

namespace lockstep::tools {

// At most `top`, marking those that do not fit, and why others are impossible.
std::string table_of(const std::vector<PredictedLayout>& all, int top);

// "Best: pp 2, dp 4; schedule 1f1b, ..." and how to start the first of `all`. If it does not fit:
// the memory that it needs, and what would help.
std::string advice(const std::vector<PredictedLayout>& all, const ModelProfile& profile,
                   const Machine& machine);

// "124.4 M parameters in 14 layers, batches of 32 rows; 8 ranks on 2 hosts with 64.0 GiB each".
std::string title_of(const ModelProfile& profile, const Machine& machine);

std::string json_of(const std::vector<PredictedLayout>& all, const ModelProfile& profile,
                    const Machine& machine);

std::string bytes_text(double bytes);      // "1.5 GiB".
std::string seconds_text(double seconds);  // "12.3 ms".

}  // namespace lockstep::tools
