// The divisions that `lockstep tune --save` has chosen, for `lockstep run -n tuned`.
//
// One file of the user has them, by host and program: docs/guide/tune.md.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/tune/divisions.h"

namespace lockstep::tools {

// Errors: system without HOME.
std::string file_of_choices();

// Replaces the choice for `program` on this host. Errors: system; corrupt for a file that `lockstep
// tune` has not written, which stays.
void save_choice(const std::vector<std::string>& program, const Division& division);

// Empty without a choice for `program` on this host. Errors: as save_choice().
std::optional<Division> saved_choice(const std::vector<std::string>& program);

}  // namespace lockstep::tools
