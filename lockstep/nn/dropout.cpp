// SPDX-License-Identifier: Apache-2.0
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cstdint>
#include <numeric>
#include <ostream>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "lockstep/nn/cut.h"
#include "lockstep/nn/layers.h"
#include "lockstep/tensor/differentiable.h"
#include "lockstep/tensor/generator_states.h"

namespace lockstep::nn {
namespace {

// 0, or the mean-preserving factor, as at::dropout().
at::Tensor& drawn(at::Tensor& mask, double p, const std::optional<at::Generator>& generator) {
  return p == 1 ? mask.zero_() : mask.bernoulli_(1 - p, generator).div_(1 - p);
}

}  // namespace

DropoutImpl::DropoutImpl(const torch::nn::DropoutOptions& dropout) : options(dropout) {
  require(options.p() >= 0 && options.p() <= 1, [&] {
    return "lockstep::nn::Dropout: p is between 0 and 1, not " + std::to_string(options.p());
  });
}

void DropoutImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "lockstep::nn::Dropout(p=" << options.p()
         << ", inplace=" << options.inplace();
  print_end(stream);
}

torch::Tensor DropoutImpl::forward(const torch::Tensor& input) {
  if (!is_training() || options.p() == 0) return input;
  if (cut() && cut()->group.size() > 1)
    return on_part(input, std::get<SequenceParallel>(cut()->style).dim);
  if (!options.inplace()) return at::dropout(input, options.p(), /*train=*/true);
  torch::Tensor in_place = input;
  return at::dropout_(in_place, options.p(), /*train=*/true);
}

torch::Tensor DropoutImpl::on_part(const torch::Tensor& input, std::int64_t dim) const {
  torch::Tensor mask;
  if (exact) {
    const std::int64_t along = dim < 0 ? dim + input.dim() : dim;
    const auto sizes = all_gather_value(input.size(along), cut()->group, label_of(*cut()));
    const auto own = sizes.begin() + cut()->group.rank();
    auto shape = input.sizes().vec();
    shape[static_cast<std::size_t>(along)] =
        std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    mask = at::empty(shape, input.options());
    mask = drawn(mask, options.p(), std::nullopt)
               .narrow(along, std::accumulate(sizes.begin(), own, std::int64_t{0}), *own);
  } else {
    mask = at::empty_like(input, input.options().device(at::kCPU));
    drawn(mask, options.p(),
          at::detail::createCPUGenerator(
              drawn_seed(static_cast<std::uint64_t>(cut()->group.rank()))));
    mask = mask.to(input.device());
  }
  if (!options.inplace()) return input * mask;
  torch::Tensor in_place = input;
  return in_place.mul_(mask);
}

std::string DropoutImpl::mismatch(const ParallelStyle& style, int /*ranks*/) const {
  return mismatch_of_whole(style, "Dropout");
}

}  // namespace lockstep::nn
