// The divisions that `lockstep tune --save` has chosen, for `lockstep run -n tuned`.
//
// They are in one file of the user: $XDG_CONFIG_HOME/lockstep/tuned.json, by default in ~/.config.
// A choice belongs to a host and a program: the program's path, or that of the script after an
// interpreter, such as train.py after python3.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/tune/divisions.h"

namespace lockstep::tools {

// The path of the file. Errors: system without HOME.
std::string file_of_choices();

// Replaces the choice for `program` on this host. Errors: system; corrupt for a file that
// `lockstep tune` has not written, which stays.
void save_choice(const std::vector<std::string>& program, const Division& division);

// Empty without a choice for `program` on this host. Errors: as save_choice().
std::optional<Division> saved_choice(const std::vector<std::string>& program);

}  // namespace lockstep::tools
