// Format of a line on the console: text after its "[rank] ", in the rank's colour on a terminal
// that wants colours, or a JSON object.
//
// Thread safety: a value, as any other. Blocking: never. Errors: none; JSON replaces invalid UTF-8.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/launch/log_options.h"

namespace lockstep {

// Level of the launcher's own lines.
enum class Level { info, error };

struct LineSource {
  int rank = 0;
  int local_rank = 0;
  bool is_error = false;  // From its stderr.
};

class LineFormat {
 public:
  // `colors_out` and `colors_err`: stdout's and stderr's lines are shown in colours.
  LineFormat(LogFormat format, bool colors_out, bool colors_err)
      : json_(format == LogFormat::json), colors_out_(colors_out), colors_err_(colors_err) {}

  bool json() const { return json_; }

  // Both return the line with its newline.
  std::string line(const LineSource& source, std::string_view text) const;
  std::string own_line(Level level, std::string_view text) const;

  // Text in front of a line, and its width in columns.
  std::string prefix(const LineSource& source) const;
  static int width_of_prefix(int rank);

 private:
  bool json_;
  bool colors_out_;
  bool colors_err_;
};

// Writes a line of the launcher to stderr at once: for an error before an Output exists, or after
// it.
LOCKSTEP_API void say_error(LogFormat format, std::string_view text);

// True for a terminal, unless NO_COLOR (no-color.org) or TERM forbids colours.
bool wants_colors(int fd);

}  // namespace lockstep
