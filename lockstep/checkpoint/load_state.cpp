// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/load_state.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/checkpoint_reader.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Which checkpoint `directory` means: itself, or the newest in it.
std::string checkpoint_in(const fs::path& directory) {
  std::error_code error;
  const bool is_one = fs::exists(directory / manifest_name, error) ||
                      step_in(directory.filename().string()) || !fs::is_directory(directory, error);
  if (is_one) return directory.string();
  const std::vector<StepDirectory> found = find_checkpoints(directory);
  require(!found.empty(), [&] { return directory.string() + " holds no checkpoint"; });
  return found.front().path.string();
}

std::string quoted(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

void require_parts(const CheckpointReader& reader, const NamedStates& states,
                   UnknownParts unknown) {
  const std::vector<std::string> parts = reader.parts();
  const std::set<std::string> all(parts.begin(), parts.end());
  std::set<std::string> saved = all;
  std::set<std::string> missing;
  for (const auto& [name, state] : states)
    if (saved.erase(name) == 0) missing.insert(name);
  require(missing.empty(), [&] {
    return reader.directory().string() + " has no part " + quoted(missing) + "; it has " +
           quoted(all);
  });
  require(unknown == UnknownParts::ignore || saved.empty(), [&] {
    return reader.directory().string() + " has the part " + quoted(saved) +
           ", which this program's state lacks";
  });
}

std::vector<StateRequest> requests_of(const CheckpointReader& reader, const NamedStates& states) {
  std::vector<StateRequest> requests;
  for (const auto& [part, state] : states) {
    try {
      requests.push_back(state->wanted(reader.contents(part)));
      reader.require_readable(part, requests.back());
    } catch (const Error& error) {
      if (error.fault() != Fault::misuse && error.fault() != Fault::mismatch) throw;
      throw Error(error.fault(),
                  reader.directory().string() + ", part '" + part + "': " + bare_text(error));
    }
  }
  return requests;
}

// This rank's share of the tensors in the parts of `states`: neighbours, so that each rank reads
// other bytes of the disk, one after the other.
void verify_share(const CheckpointReader& reader, const NamedStates& states,
                  const CheckpointRanks& ranks) {
  std::uint64_t all = 0;
  for (const auto& [part, state] : states)
    for (const auto& [name, tensor] : reader.contents(part).tensors) all += tensor.data.nbytes();
  const std::uint64_t share = all / static_cast<std::uint64_t>(ranks.size()) + 1;
  std::uint64_t before = 0;
  for (const auto& [part, state] : states)
    for (const auto& [name, tensor] : reader.contents(part).tensors) {
      if (before / share == static_cast<std::uint64_t>(ranks.rank())) reader.verify(part, name);
      before += tensor.data.nbytes();
    }
}

std::vector<StateDict> read_all(const CheckpointReader& reader, const NamedStates& states,
                                const std::vector<StateRequest>& requests) {
  try {
    std::vector<StateDict> loaded;
    for (std::size_t i = 0; i < states.size(); ++i)
      loaded.push_back(reader.read(states[i].first, requests[i]));
    return loaded;
  } catch (const Error& error) {
    throw Error(error.fault(),
                bare_text(error) + "; it was whole before, and the state is half loaded now");
  }
}

}  // namespace

std::int64_t load_state(const fs::path& directory, const NamedStates& states,
                        const CheckpointRanks& ranks, UnknownParts unknown) {
  // Rank 0 says which: a training may be saving the next one.
  const fs::path checkpoint =
      ranks.rank_0("name of a checkpoint", [&] { return checkpoint_in(directory); });

  std::optional<CheckpointReader> reader;
  std::vector<StateRequest> requests;
  ranks.all("a checkpoint to verify", [&] {
    reader.emplace(checkpoint);
    require_parts(*reader, states, unknown);
    requests = requests_of(*reader, states);
    verify_share(*reader, states, ranks);
    return std::string();
  });

  // From the page cache as a rule, and compared with the checksums once more.
  std::vector<StateDict> loaded;
  ranks.all("a checkpoint to load", [&] {
    loaded = read_all(*reader, states, requests);
    return std::string();
  });
  for (std::size_t i = 0; i < states.size(); ++i)
    states[i].second->load_state_dict(std::move(loaded[i]));
  return reader->step();
}

}  // namespace lockstep
