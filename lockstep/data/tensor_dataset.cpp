// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/tensor_dataset.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"

namespace lockstep {
namespace {

constexpr std::int64_t byte_values = 256;

// Where a row has each channel's values.
struct Layout {
  std::int64_t channels;
  std::int64_t pixels;  // Values per channel.
  std::int64_t channel_stride;
  std::int64_t pixel_stride;
};

std::int64_t channels_of(const at::Tensor& samples) {
  return samples.dim() > 1 ? samples.size(1) : 1;
}

bool is_channels_last(const at::Tensor& rows) {
  return (rows.dim() == 4 && rows.is_contiguous(at::MemoryFormat::ChannelsLast)) ||
         (rows.dim() == 5 && rows.is_contiguous(at::MemoryFormat::ChannelsLast3d));
}

Layout layout_of(const at::Tensor& rows) {
  const std::int64_t channels = channels_of(rows);
  const std::int64_t pixels =
      channels == 0 ? 0 : c10::multiply_integers(rows.sizes().slice(1)) / channels;
  if (rows.is_contiguous()) return {channels, pixels, pixels, 1};
  require(is_channels_last(rows),
          "TensorDataset: rows are filled where they are contiguous or channels_last");
  return {channels, pixels, 1, channels};
}

// The processor does not predict a random order, but prefetches the rest of a long sample.
template <class Value>
void prefetch(const Value* sample, std::int64_t values) {
  constexpr std::size_t most_bytes = 4096;
  const auto* bytes = reinterpret_cast<const std::byte*>(sample);
  const std::size_t end = std::min(static_cast<std::size_t>(values) * sizeof(Value), most_bytes);
  for (std::size_t at = 0; at < end; at += cache_line) __builtin_prefetch(bytes + at);
}

template <class From, class To, class Convert>
void write_channel(const From* __restrict from, To* __restrict to, const Layout& layout,
                   const Convert& convert) {
  if (layout.pixel_stride == 1)
    for (std::int64_t p = 0; p < layout.pixels; ++p) to[p] = convert(from[p]);
  else
    for (std::int64_t p = 0; p < layout.pixels; ++p) to[p * layout.pixel_stride] = convert(from[p]);
}

// `conversion(channel)` returns its function.
template <class To, class From, class Conversion>
void gather(const From* samples, const BatchRows& rows, const Conversion& conversion) {
  const Layout layout = layout_of(rows.data);
  const std::int64_t values = layout.channels * layout.pixels;
  const auto sample = [&](std::size_t row) {
    return samples + static_cast<std::int64_t>(rows.indices[row]) * values;
  };
  To* to = static_cast<To*>(rows.data.mutable_data_ptr());
  for (std::size_t row = 0; row < rows.indices.size(); ++row, to += values) {
    if (row + 1 < rows.indices.size()) prefetch(sample(row + 1), values);
    for (std::int64_t c = 0; c < layout.channels; ++c)
      write_channel(sample(row) + c * layout.pixels, to + c * layout.channel_stride, layout,
                    conversion(c));
  }
}

template <std::size_t bytes>
struct Element {
  std::byte value[bytes];
};

// Gathers values of any type by their size.
void gather_unchanged(const at::Tensor& samples, const BatchRows& rows) {
  const void* from = samples.const_data_ptr();
  const auto gather_elements = [&]<std::size_t bytes>() {
    gather<Element<bytes>>(static_cast<const Element<bytes>*>(from), rows,
                           [](std::int64_t) { return std::identity(); });
  };
  switch (samples.element_size()) {
    case 1:
      return gather_elements.operator()<1>();
    case 2:
      return gather_elements.operator()<2>();
    case 4:
      return gather_elements.operator()<4>();
    case 8:
      return gather_elements.operator()<8>();
    default:
      return gather_elements.operator()<16>();
  }
}

void gather_targets(const at::Tensor& targets, const BatchRows& rows) {
  const std::size_t bytes = targets.size(0) == 0 ? 0 : targets.nbytes() / targets.size(0);
  const auto* from = static_cast<const std::byte*>(targets.const_data_ptr());
  auto* to = static_cast<std::byte*>(rows.target.mutable_data_ptr());
  for (const std::size_t index : rows.indices) {
    std::memcpy(to, from + index * bytes, bytes);
    to += bytes;
  }
}

std::vector<float> floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

constexpr auto unit_of = [](std::uint8_t value) { return static_cast<float>(value) / 255.0F; };

struct LookUp {
  const float* table;

  auto operator()(std::int64_t channel) const {
    return [values = table + channel * byte_values](std::uint8_t value) { return values[value]; };
  }
};

struct Normalise {
  const float* mean;
  const float* std;

  auto operator()(std::int64_t channel) const {
    return [m = mean[channel], s = std[channel]](float value) { return (value - m) / s; };
  }
};

std::vector<float> table_of(const std::vector<float>& mean, const std::vector<float>& std) {
  std::vector<float> table;
  for (std::size_t channel = 0; channel < mean.size(); ++channel)
    for (int value = 0; value < byte_values; ++value)
      table.push_back((unit_of(static_cast<std::uint8_t>(value)) - mean[channel]) / std[channel]);
  return table;
}

std::vector<std::int64_t> sizes_of_samples(const at::Tensor& samples) {
  return samples.sizes().slice(1).vec();
}

}  // namespace

TensorDataset::TensorDataset(at::Tensor data, at::Tensor target, TensorDatasetOptions options)
    : mean_(floats(options.mean)), std_(floats(options.std)) {
  require(data.defined() && target.defined() && data.is_cpu() && target.is_cpu() &&
              data.layout() == at::kStrided && target.layout() == at::kStrided,
          "TensorDataset: data and target must be dense tensors on the CPU");
  require(data.dim() > 0 && target.dim() > 0 && data.size(0) == target.size(0), [&] {
    std::string text = "TensorDataset: each sample needs a target, but the sizes are ";
    return (text += c10::str(data.sizes(), " and ", target.sizes()));
  });
  const auto channels = static_cast<std::size_t>(channels_of(data));
  require(mean_.size() == std_.size() && (mean_.empty() || mean_.size() == channels), [&] {
    return "TensorDataset: samples have " + std::to_string(channels) + " channels, but mean has " +
           std::to_string(mean_.size()) + " entries and std " + std::to_string(std_.size());
  });
  require(std::ranges::count(std_, 0.0F) == 0, "TensorDataset: an entry of std is 0");
  const at::ScalarType type = data.scalar_type();
  require(mean_.empty() || type == at::kByte || type == at::kFloat,
          "TensorDataset: only uint8 and float data can be normalised");
  data_ = data.detach().contiguous();
  target_ = target.detach().contiguous();
  if (type == at::kByte) table_ = table_of(mean_, std_);
}

std::size_t TensorDataset::size() const { return static_cast<std::size_t>(data_.size(0)); }

SampleSpec TensorDataset::data_spec() const {
  return {.sizes = sizes_of_samples(data_),
          .type = data_.scalar_type() == at::kByte ? at::kFloat : data_.scalar_type()};
}

SampleSpec TensorDataset::target_spec() const {
  return {.sizes = sizes_of_samples(target_), .type = target_.scalar_type()};
}

void TensorDataset::fill(const BatchRows& rows) const {
  for (const std::size_t index : rows.indices)
    require(index < size(), [&] { return "TensorDataset: there is no " + sample_name(index); });
  gather_targets(target_, rows);
  const bool is_normalised = !mean_.empty();
  if (data_.scalar_type() == at::kByte) {
    const auto* bytes = data_.const_data_ptr<std::uint8_t>();
    is_normalised ? gather<float>(bytes, rows, LookUp{table_.data()})
                  : gather<float>(bytes, rows, [](std::int64_t) { return unit_of; });
  } else if (is_normalised) {
    gather<float>(data_.const_data_ptr<float>(), rows, Normalise{mean_.data(), std_.data()});
  } else {
    gather_unchanged(data_, rows);
  }
}

std::string TensorDataset::sample_name(std::size_t index) const {
  return "row " + std::to_string(index);
}

}  // namespace lockstep
