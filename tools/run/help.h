// Options of `lockstep run`, and the text of --help.

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace CLI {
class App;
}

namespace lockstep::tools {

// Declares each option with one text, still to be parsed, and each flag without. Each may also come
// from a variable.
void declare_options(CLI::App& app);

// Refuses options of torchrun that have no effect here. Errors: misuse, with the alternative.
void refuse_others(const CLI::App& app);

}  // namespace lockstep::tools
