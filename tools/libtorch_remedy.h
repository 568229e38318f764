// Advice for a missing or wrong LibTorch.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::tools {

// `version`: such as "2.13". `place`: the folder where a package looks for LibTorch; empty in
// copies that users have built.
inline std::string libtorch_remedy(const std::string& version, const std::string& place) {
  const std::string libtorch = "LibTorch " + version;
  const std::string named =
      "name the folder of " + libtorch + "'s libraries in LD_LIBRARY_PATH, or ";
  return place.empty() ? named + "build with -DTorch_DIR=DIR"
                       : named + "unpack " + libtorch + " to " + place + " or link it there";
}

}  // namespace lockstep::tools
