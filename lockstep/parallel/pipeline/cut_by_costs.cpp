// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/cut_by_costs.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>

#include "lockstep/base/error.h"

namespace lockstep {

std::vector<int> cut_by_costs(const std::vector<double>& costs, int stages) {
  const std::size_t layers = costs.size();
  const double infinite = std::numeric_limits<double>::infinity();
  std::vector<double> sums(layers + 1, 0);
  std::partial_sum(costs.begin(), costs.end(), sums.begin() + 1);
  // worst[k][i]: the costliest stage if layers 0 to i - 1 form k stages.
  std::vector<std::vector<double>> worst(static_cast<std::size_t>(stages) + 1,
                                         std::vector<double>(layers + 1, infinite));
  std::vector<std::vector<std::size_t>> begins(worst.size(), std::vector<std::size_t>(layers + 1));
  worst[0][0] = 0;
  for (std::size_t k = 1; k < worst.size(); ++k)
    for (std::size_t end = k; end <= layers; ++end)
      for (std::size_t begin = k - 1; begin < end; ++begin)
        if (const double cost = std::max(worst[k - 1][begin], sums[end] - sums[begin]);
            cost < worst[k][end]) {
          worst[k][end] = cost;
          begins[k][end] = begin;
        }
  std::vector<int> first(static_cast<std::size_t>(stages));
  std::size_t end = layers;
  for (std::size_t k = first.size(); k > 0; --k) {
    end = begins[k][end];
    first[k - 1] = static_cast<int>(end);
  }
  check(std::ranges::adjacent_find(first, std::greater_equal()) == first.end(),
        "a stage of a cut has no layer");
  return first;
}

}  // namespace lockstep
