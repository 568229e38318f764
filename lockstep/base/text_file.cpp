// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/text_file.h"

#include <fstream>
#include <sstream>

#include "lockstep/base/error.h"

namespace lockstep {

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  if (in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
  if (!in.is_open() || in.bad() || !text) throw_errno("reading " + path);
  return text.str();
}

void write_file(const std::string& path, std::string_view text) {
  std::ofstream out(path);
  out << text;
  out.close();
  if (!out) throw_errno("writing " + path);
}

}  // namespace lockstep
