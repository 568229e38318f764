// For cut.h.

// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/cut.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep::nn {
namespace {

constexpr std::int64_t most_elements = 1024;

// Integers: halves of a digest; others: evenly spaced elements.
std::vector<double> sample_of(const at::Tensor& input) {
  if (input.is_complex()) return sample_of(at::view_as_real(input.resolve_conj()));
  if (!input.is_floating_point()) {
    const std::uint64_t digest = digest_of(input);
    return {static_cast<double>(digest >> 32), static_cast<double>(digest & 0xffffffff)};
  }
  const at::Tensor all = input.detach().reshape(-1);
  const std::int64_t count = std::min(all.numel(), most_elements);
  std::vector<double> sample(static_cast<std::size_t>(count));
  if (count == 0) return sample;
  const at::Tensor places = (at::arange(count, at::kLong) * all.numel()).floor_divide_(count);
  const at::Tensor picked =
      all.index_select(0, places.to(all.device())).to(at::kCPU, at::kDouble).contiguous();
  std::copy_n(picked.const_data_ptr<double>(), count, sample.begin());
  return sample;
}

// Tolerates rounding by other processors and thread counts.
bool are_near(const double* one, const double* other, std::size_t count) {
  double squares = 0;
  for (std::size_t i = 0; i < count; ++i)
    if (std::isfinite(one[i])) squares += one[i] * one[i];
  const double usual = std::sqrt(squares / static_cast<double>(count));
  for (std::size_t i = 0; i < count; ++i) {
    const bool both_nan = std::isnan(one[i]) && std::isnan(other[i]);
    if (one[i] == other[i] || both_nan) continue;
    if (!std::isfinite(one[i]) || !std::isfinite(other[i])) return false;
    if (std::abs(one[i] - other[i]) > (std::abs(one[i]) + usual) / 32) return false;
  }
  return true;
}

// Ranks outside the majority; without one, all.
std::vector<int> differing_ranks(const std::vector<double>& all, std::size_t count, bool is_exact,
                                 int ranks) {
  const auto differ = [&](int one, int other) {
    const double* const a = all.data() + static_cast<std::size_t>(one) * count;
    const double* const b = all.data() + static_cast<std::size_t>(other) * count;
    return is_exact ? !std::equal(a, a + count, b) : !are_near(a, b, count);
  };
  std::vector<int> fewest(static_cast<std::size_t>(ranks));
  std::iota(fewest.begin(), fewest.end(), 0);
  for (int one = 0; one < ranks && 2 * fewest.size() >= static_cast<std::size_t>(ranks); ++one) {
    std::vector<int> others;
    for (int other = 0; other < ranks; ++other)
      if (differ(one, other)) others.push_back(other);
    if (2 * others.size() < static_cast<std::size_t>(ranks)) fewest = std::move(others);
  }
  return fewest;
}

}  // namespace

void require_equal_inputs(const at::Tensor& input, const CutTo& cut, std::uint64_t call) {
  const int ranks = cut.group.size();
  if (!cut.checks_inputs || ranks == 1 || !std::has_single_bit(call)) return;
  const at::NoGradGuard no_grad;
  // Hidden from activation_checkpoint(), which compares a block's runs.
  const c10::impl::ExcludeDispatchKeyGuard unseen(c10::DispatchKey::Fake);
  std::vector<double> mine = sample_of(input);
  std::vector<double> all(mine.size() * static_cast<std::size_t>(ranks));
  const std::string label = cut.name + " (input)" + shape_text(input);
  naming_errors(cut.name, [&] {
    cut.group.all_gather(buffer_of(mine), buffer_of(all), {}, {.label = label});
  });
  const bool is_exact = !input.is_floating_point() && !input.is_complex();
  const std::vector<int> differing = differing_ranks(all, mine.size(), is_exact, ranks);
  if (differing.empty()) return;
  const bool is_all = differing.size() == static_cast<std::size_t>(ranks);
  throw Error(Fault::mismatch,
              cut.name + ": in call " + std::to_string(call) + ", whole inputs differ in group " +
                  cut.group.name() + ": those of " + name_of_ranks(differing) +
                  (is_all ? " from each other" : " from those of the other ranks") +
                  ". Its ranks need the same batch, and the same random numbers",
              differing);
}

}  // namespace lockstep::nn
