// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/batch_norm_kernels.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <type_traits>

#include "lockstep/tensor/on_threads.h"

namespace lockstep::nn {
namespace {

template <class T>
using Channel = std::conditional_t<std::is_same_v<T, double>, double, float>;

// A packed tensor: `planes` times `channels` runs of `run` elements. With channels last, `run` is 1
// and a plane is a row of all channels.
struct Layout {
  explicit Layout(const at::Tensor& tensor) : channels(tensor.size(1)) {
    const std::int64_t per_channel = tensor.numel() / std::max<std::int64_t>(channels, 1);
    const bool channels_first = tensor.is_contiguous() && tensor.size(0) != 0;
    run = channels_first ? per_channel / tensor.size(0) : 1;
    planes = run == 0 ? 0 : per_channel / run;
  }

  std::int64_t channels;
  std::int64_t run;
  std::int64_t planes;
};

constexpr std::int64_t rows_of_block = 64;

std::int64_t blocks_of(const Layout& layout) {
  return (layout.planes + rows_of_block - 1) / rows_of_block;
}

// Partial sums, for vectorisation.
constexpr std::int64_t lanes = 16;

template <class Sum, class Value>
Sum sum_of(std::int64_t count, const Value& value) {
  std::array<Sum, lanes> sums{};
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (std::int64_t lane = 0; lane < lanes; ++lane) sums[lane] += value(i + lane);
  Sum total = 0;
  for (; i < count; ++i) total += value(i);
  for (const Sum sum : sums) total += sum;
  return total;
}

// Sums distances from an estimated mean: no digits are lost if the mean is far from zero. The
// second pass reads from the L1 cache.
template <class T>
Moments moments_of_chunk(const T* values, std::int64_t count) {
  using Sum = Channel<T>;
  const auto at = [&](std::int64_t i) { return static_cast<Sum>(values[i]); };
  const Sum near = sum_of<Sum>(count, at) / static_cast<Sum>(count);
  const Sum rest = sum_of<Sum>(count, [&](std::int64_t i) { return at(i) - near; });
  const Sum squares = sum_of<Sum>(count, [&](std::int64_t i) {
    const Sum distance = at(i) - near;
    return distance * distance;
  });
  const auto n = static_cast<double>(count);
  const double off = rest / n;
  return {.count = n, .mean = near + off, .m2 = std::max(squares - off * off * n, 0.0)};
}

template <class T>
void moments_of_channel(const T* input, const Layout& layout, Moments& moments) {
  constexpr std::int64_t chunk = 4096;
  for (std::int64_t plane = 0; plane < layout.planes;
       ++plane, input += layout.channels * layout.run)
    for (std::int64_t i = 0; i < layout.run; i += chunk)
      moments.join(moments_of_chunk(input + i, std::min(chunk, layout.run - i)));
}

template <class T>
std::vector<Moments> moments_of_planes(const T* input, const Layout& layout) {
  std::vector<Moments> moments(static_cast<std::size_t>(layout.channels));
  on_threads(layout.channels, [&](std::int64_t channel) {
    moments_of_channel(input + channel * layout.run, layout, moments[channel]);
  });
  return moments;
}

// ATen is fast here. With running statistics, half precision uses the channel type too.
std::vector<Moments> moments_of_rows(const at::Tensor& input, const Layout& layout) {
  std::vector<Moments> moments(static_cast<std::size_t>(layout.channels));
  if (layout.planes == 0) return moments;
  const at::Tensor unused =
      at::zeros({2, layout.channels}, at::dtype(channel_type(input.scalar_type())));
  const auto [mean, variance] =
      at::batch_norm_update_stats(input, unused[0], unused[1], /*momentum=*/0);
  const at::Tensor means = mean.to(at::kDouble), variances = variance.to(at::kDouble);
  const auto count = static_cast<double>(layout.planes);
  for (std::int64_t c = 0; c < layout.channels; ++c)
    moments[c] = {.count = count,
                  .mean = means.const_data_ptr<double>()[c],
                  .m2 = variances.const_data_ptr<double>()[c] * count};
  return moments;
}

template <class T>
struct Gradient {
  const T* gradient;
  const T* input;
  const Channel<T>* mean;
  const Channel<T>* offset;
  const Channel<T>* slope;
  const Channel<T>* scale;
  T* output;
};

template <class T>
void of_run(const Gradient<T>& all, std::int64_t first, std::int64_t count, std::int64_t channel) {
  using Sum = Channel<T>;
  const T* __restrict gradient = all.gradient + first;
  const T* __restrict input = all.input + first;
  T* __restrict output = all.output + first;
  const Sum mean = all.mean[channel], offset = all.offset[channel];
  const Sum slope = all.slope[channel], scale = all.scale[channel];
  for (std::int64_t i = 0; i < count; ++i) {
    const Sum distance = static_cast<Sum>(input[i]) - mean;
    output[i] = static_cast<T>(scale * (static_cast<Sum>(gradient[i]) - offset - distance * slope));
  }
}

template <class T>
void of_row(const Gradient<T>& all, std::int64_t first, std::int64_t channels) {
  using Sum = Channel<T>;
  const T* __restrict gradient = all.gradient + first;
  const T* __restrict input = all.input + first;
  const Sum* __restrict mean = all.mean, * __restrict offset = all.offset;
  const Sum* __restrict slope = all.slope, * __restrict scale = all.scale;
  T* __restrict output = all.output + first;
  for (std::int64_t c = 0; c < channels; ++c) {
    const Sum distance = static_cast<Sum>(input[c]) - mean[c];
    output[c] = static_cast<T>(scale[c] *
                               (static_cast<Sum>(gradient[c]) - offset[c] - distance * slope[c]));
  }
}

template <class T>
void compute(const Gradient<T>& all, const Layout& layout) {
  if (layout.run != 1) {
    on_threads(layout.planes * layout.channels, [&](std::int64_t i) {
      of_run(all, i * layout.run, layout.run, i % layout.channels);
    });
    return;
  }
  on_threads(blocks_of(layout), [&](std::int64_t block) {
    const std::int64_t row = block * rows_of_block;
    const std::int64_t end = std::min(row + rows_of_block, layout.planes);
    for (std::int64_t i = row; i < end; ++i) of_row(all, i * layout.channels, layout.channels);
  });
}

}  // namespace

at::Tensor packed(const at::Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : tensor.contiguous(tensor.suggest_memory_format());
}

at::Tensor packed_like(const at::Tensor& tensor, const at::Tensor& model) {
  return tensor.contiguous(model.is_contiguous() ? at::MemoryFormat::Contiguous
                                                 : model.suggest_memory_format());
}

at::ScalarType channel_type(at::ScalarType input) {
  return input == at::kDouble ? at::kDouble : at::kFloat;
}

std::vector<Moments> channel_moments(const at::Tensor& input) {
  const Layout layout(input);
  if (layout.run == 1) return moments_of_rows(input, layout);
  return AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "SyncBatchNorm",
      [&] { return moments_of_planes(input.const_data_ptr<scalar_t>(), layout); });
}

at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& input,
                          const at::Tensor& coefficients) {
  at::Tensor output = at::empty_like(input);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "SyncBatchNorm backward", [&] {
        const auto* const c = coefficients.const_data_ptr<Channel<scalar_t>>();
        const std::int64_t n = input.size(1);
        compute(Gradient<scalar_t>{gradient.const_data_ptr<scalar_t>(),
                                   input.const_data_ptr<scalar_t>(), c, c + n, c + 2 * n, c + 3 * n,
                                   output.mutable_data_ptr<scalar_t>()},
                Layout(input));
      });
  return output;
}

}  // namespace lockstep::nn
