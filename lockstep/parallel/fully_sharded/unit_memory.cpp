// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/fully_sharded/unit_memory.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/base/memory.h"
#include "lockstep/parallel/fully_sharded/sharded_units.h"
#include "lockstep/parallel/gradients/gradient_memory.h"

namespace lockstep {

std::vector<std::size_t> rooms_for_two_units(const NamedTensors& parameters,
                                             const BucketAssignment& units) {
  std::map<std::size_t, std::pair<std::size_t, std::size_t>> counts;  // Total; maximum in a unit.
  for (const auto& unit : units) {
    std::map<std::size_t, std::size_t> here;
    for (const std::size_t i : unit)
      if (const std::size_t bytes = parameters[i].second.nbytes(); is_large_gradient(bytes))
        ++here[bytes];
    for (const auto& [bytes, count] : here) {
      counts[bytes].first += count;
      counts[bytes].second = std::max(counts[bytes].second, count);
    }
  }
  std::vector<std::size_t> rooms;
  for (const auto& [bytes, count] : counts)
    rooms.insert(rooms.end(), std::min(count.first, 2 * count.second), bytes);
  return rooms;
}

std::size_t bytes_of_unit_gradients(const NamedTensors& parameters,
                                    const std::vector<std::string>& patterns, int ranks) {
  BucketAssignment units;
  for (const parallel::Unit& unit : parallel::units_of(parameters, patterns))
    units.push_back(unit.parameters);
  std::size_t bytes = 0;
  if (ranks > 1)
    for (const std::size_t room : rooms_for_two_units(parameters, units)) bytes += padded(room);
  for (const auto& [name, parameter] : parameters)
    if (!is_large_gradient(parameter.nbytes())) bytes += padded(parameter.nbytes());
  return bytes;
}

}  // namespace lockstep
