// Which options `lockstep run` has, and what --help says.

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace CLI {
class App;
}

namespace lockstep::tools {

// Every option takes one text, as yet unread, and every flag none; each of them also from a
// variable.
void declare_options(CLI::App& app);

// Options of torchrun that cannot do anything here. Errors: misuse, with what to do instead.
void refuse_others(const CLI::App& app);

}  // namespace lockstep::tools
