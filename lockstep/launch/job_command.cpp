// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/job_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>

#include "lockstep/base/bytes.h"
#include "lockstep/base/text.h"
#include "lockstep/job/store/handshake.h"

namespace lockstep {
namespace {

using Words = std::vector<std::string>;

std::string shown(const std::string& word) {
  return clean_text(word, JobCommand::longest_argument);
}

// SHA-256 of the words, each after its length, in hexadecimal.
std::string digest_of(const Words& words) {
  std::string bytes;
  for (const std::string& word : words) bytes += ByteWriter(4 + word.size()).prefixed(word).take();
  return sha256_hex(bytes);
}

Words words_of(const JobCommand& command) {
  Words words{command.program};
  words.insert(words.end(), command.arguments.begin(), command.arguments.end());
  return words;
}

// Returns the first word, the one at `place`, and the one before it.
std::string excerpt(const Words& words, std::size_t place) {
  const std::size_t end = std::min(place + 1, words.size());
  std::string text = words.front();
  if (place > 2) text += " ...";
  for (std::size_t i = std::max<std::size_t>(place, 2) - 1; i < end; ++i)
    text.append(" ").append(words[i]);
  return fmt::format("`{}{}`", text, end < words.size() ? " ..." : "");
}

std::string by_digest(const JobCommand& command) {
  return fmt::format("`{} ...` with arguments of SHA-256 {}", command.program,
                     command.digest.substr(0, 8));
}

}  // namespace

JobCommand job_command(const RunOptions& options) {
  Words words{std::filesystem::path(options.program).filename()};
  for (std::size_t i = 1; i < options.arguments.size(); ++i) words.push_back(options.arguments[i]);
  JobCommand command{.program = shown(words.front()), .digest = digest_of(words)};
  const std::size_t end = std::min(words.size(), 1 + JobCommand::most_arguments);
  for (std::size_t i = 1; i < end; ++i) command.arguments.push_back(shown(words[i]));
  return command;
}

std::optional<CommandDifference> difference(const JobCommand& here, const JobCommand& there) {
  if (here.digest == there.digest) return std::nullopt;
  const Words a = words_of(here);
  const Words b = words_of(there);
  const auto place = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  // The difference may be in a part that was cut off.
  if (place.first == a.end() && place.second == b.end())
    return CommandDifference{by_digest(here), by_digest(there)};
  const auto at = static_cast<std::size_t>(place.first - a.begin());
  return CommandDifference{excerpt(a, at), excerpt(b, at)};
}

}  // namespace lockstep
