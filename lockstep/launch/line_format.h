// What a line looks like on the console: text after its "[rank] ", in the rank's colour on a
// terminal that wants colours, or a JSON object.
//
// Thread safety: a value, as any other. Blocking: never. Errors: none; what is not UTF-8 is
// replaced where JSON needs it to be.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/launch/log_options.h"

namespace lockstep {

// Of what the launcher itself says.
enum class Level { info, error };

struct LineSource {
  int rank = 0;
  int local_rank = 0;
  bool is_error = false;  // Of its stderr.
};

class LineFormat {
 public:
  // Whether the stream that lines of stdout, and of stderr, go to is shown in colours.
  LineFormat(LogFormat format, bool colors_out, bool colors_err)
      : json_(format == LogFormat::json), colors_out_(colors_out), colors_err_(colors_err) {}

  bool json() const { return json_; }

  // With its newline.
  std::string line(const LineSource& source, std::string_view text) const;
  std::string own_line(Level level, std::string_view text) const;

  // What stands before a line of text, and how many columns that takes.
  std::string prefix(const LineSource& source) const;
  static int width_of_prefix(int rank);

 private:
  bool json_;
  bool colors_out_;
  bool colors_err_;
};

// Writes a line of the launcher itself to stderr, at once: about an error that comes before there
// is an Output, or after it.
LOCKSTEP_API void say_error(LogFormat format, std::string_view text);

// A terminal, unless NO_COLOR (no-color.org) or TERM says that it is to have none.
bool wants_colors(int fd);

}  // namespace lockstep
