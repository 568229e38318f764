// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/low_rank_bucket.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/div.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/tensor/collectives.h"

namespace lockstep::parallel {
namespace {

double eps_of(at::ScalarType type) {
  return type == at::kDouble ? std::numeric_limits<double>::epsilon()
                             : std::numeric_limits<float>::epsilon();
}

// A row that depends on earlier ones has only rounding errors left. A row of non-finite length
// becomes NaNs: overflow must not become zero.
void gram_schmidt(const at::Tensor& matrices, double epsilon) {
  const std::int64_t rows = matrices.size(1);
  const double rounding = 16 * eps_of(matrices.scalar_type());
  const at::Tensor noise =
      at::linalg_vector_norm(matrices, 2, {2}, /*keepdim=*/true).mul_(rounding);
  for (std::int64_t i = 0; i < rows; ++i) {
    const at::Tensor row = matrices.narrow(1, i, 1);
    const at::Tensor length = at::linalg_vector_norm(row, 2, {2}, /*keepdim=*/true);
    const at::Tensor is_noise = length.le(noise.narrow(1, i, 1)).logical_and_(length.isfinite());
    const at::Tensor zero_or_nan = length.mul(0);
    row.div_(length.add(epsilon)).add_(zero_or_nan).masked_fill_(is_noise, 0);
    if (i + 1 == rows) return;
    const at::Tensor rest = matrices.narrow(1, i + 1, rows - i - 1);
    rest.sub_((row * rest).sum(2, /*keepdim=*/true) * row);
  }
}

// Registered if supported.
at::Tensor summed_memory(std::int64_t elements, const GradientBucket& bucket) {
  const at::Tensor& buffer = bucket.buffer;
  const bool is_registered = buffer.is_cpu() && elements > 0;
  return is_registered ? registered_zeros({elements}, buffer.scalar_type(), bucket.group)
                       : at::zeros({elements}, buffer.options());
}

at::Tensor next_of(const at::Tensor& flat, std::int64_t& begin, at::IntArrayRef sizes) {
  const std::int64_t count = c10::multiply_integers(sizes);
  begin += count;
  return flat.narrow(0, begin - count, count).view(sizes);
}

void restore(const at::Tensor& place, const at::Tensor& kept, const std::string& name) {
  require(kept.sizes() == place.sizes() && kept.scalar_type() == place.scalar_type(), [&] {
    return "PowerSGD: the loaded state of gradient " + name +
           " has another shape or type than the gradient";
  });
  place.copy_(kept);
}

}  // namespace

void orthogonalize(const at::Tensor& matrices, double epsilon) {
  if (at::isReducedFloatingType(matrices.scalar_type())) {
    const at::Tensor wide = matrices.to(at::kFloat);
    orthogonalize(wide, epsilon);
    matrices.copy_(wide);
    return;
  }
  if (matrices.size(1) <= 2) return gram_schmidt(matrices, epsilon);
  matrices.copy_(std::get<0>(at::linalg_qr(matrices.transpose(1, 2))).transpose(1, 2));
}

at::Tensor LowRankBucket::Place::in(const at::Tensor& buffer) const {
  return buffer.narrow(0, begin, numel()).view({rows, columns});
}

LowRankBucket::Place LowRankBucket::place_of(const GradientBucket& bucket, std::size_t gradient) {
  const at::Tensor& values = bucket.gradients[gradient].second;
  const auto offset = static_cast<const char*>(values.const_data_ptr()) -
                      static_cast<const char*>(bucket.buffer.const_data_ptr());
  const std::int64_t reals = values.numel() * (values.is_complex() ? 2 : 1);
  std::int64_t rows = 1;
  if (values.dim() > 0 && reals > 0) {
    const auto strides = values.strides();
    rows = values.size(std::max_element(strides.begin(), strides.end()) - strides.begin());
  }
  return {.begin = offset / static_cast<std::int64_t>(bucket.buffer.element_size()),
          .rows = rows,
          .columns = reals / rows};
}

std::vector<LowRankBucket::Matrix> LowRankBucket::matrices_of(const GradientBucket& bucket) {
  std::vector<Matrix> matrices;
  for (std::size_t i = 0; i < bucket.gradients.size(); ++i)
    matrices.push_back({place_of(bucket, i), bucket.gradients[i].first});
  return matrices;
}

template <class Visit>
void LowRankBucket::for_each(const Visit& visit) const {
  for (const Batch& batch : batches_)
    for (std::size_t i = 0; i < batch.matrices.size(); ++i)
      visit(batch, batch.matrices[i], static_cast<std::int64_t>(i));
}

LowRankBucket::LowRankBucket(const GradientBucket& bucket, const PowerSGDOptions& options)
    : options_(options), all_(matrices_of(bucket)) {
  divide(all_);
  allocate(bucket);
}

// Copies no names.
bool LowRankBucket::fits(const GradientBucket& bucket) const {
  if (bucket.gradients.size() != all_.size()) return false;
  for (std::size_t i = 0; i < all_.size(); ++i)
    if (all_[i].name != bucket.gradients[i].first || all_[i] != place_of(bucket, i)) return false;
  return true;
}

bool LowRankBucket::has_lost_rows() const {
  return std::any_of(batches_.begin(), batches_.end(),
                     [](const Batch& batch) { return batch.q.eq(0).all(2).any().item<bool>(); });
}

// As in PyTorch, batches are in their first matrices' order.
void LowRankBucket::divide(const std::vector<Matrix>& matrices) {
  std::vector<Batch> by_shape;
  for (const Matrix& matrix : matrices) {
    elements_ += matrix.numel();
    const auto [n, m] = std::pair(matrix.rows, matrix.columns);
    const std::int64_t rank = std::min({n, m, options_.matrix_approximation_rank});
    const auto compressed = static_cast<double>((n + m) * rank);
    if (compressed * options_.min_compression_rate >= static_cast<double>(n * m)) {
      uncompressed_.push_back(matrix);
      continue;
    }
    auto batch = std::find_if(by_shape.begin(), by_shape.end(), [&](const Batch& other) {
      return other.matrices.front().rows == n && other.matrices.front().columns == m;
    });
    if (batch == by_shape.end())
      batch = by_shape.insert(batch, Batch{.matrices = {}, .rank = rank});
    batch->matrices.push_back(matrix);
  }
  if (options_.batch_tensors_with_same_shape) {
    batches_ = std::move(by_shape);
    return;
  }
  for (const Batch& batch : by_shape)
    for (const Matrix& matrix : batch.matrices)
      batches_.push_back({.matrices = {matrix}, .rank = batch.rank});
}

void LowRankBucket::allocate(const GradientBucket& bucket) {
  std::int64_t sums = 0;
  std::int64_t qs = 0;
  std::int64_t ms = 0;
  for (const Matrix& matrix : uncompressed_) sums += matrix.numel();
  std::int64_t p_begin = sums;
  for (const Batch& batch : batches_)
    for (const Matrix& matrix : batch.matrices) {
      sums += matrix.rows * batch.rank;
      qs += matrix.columns * batch.rank;
      ms += matrix.numel();
    }
  sums_ = summed_memory(sums, bucket);
  qs_ = summed_memory(qs, bucket);
  ms_ = at::zeros({ms}, bucket.buffer.options());
  std::int64_t q_begin = 0;
  std::int64_t m_begin = 0;
  for (Batch& batch : batches_) {
    const auto count = static_cast<std::int64_t>(batch.matrices.size());
    const Matrix& first = batch.matrices.front();
    batch.m = next_of(ms_, m_begin, {count, first.rows, first.columns});
    batch.p = next_of(sums_, p_begin, {count, batch.rank, first.rows});
    batch.q = next_of(qs_, q_begin, {count, batch.rank, first.columns});
  }
}

void LowRankBucket::draw(std::uint64_t seed) {
  qs_.zero_();
  draw_lost_rows(seed);
}

// As PyTorch: on the CPU, by one generator for all batches.
void LowRankBucket::draw_lost_rows(std::uint64_t seed) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (const Batch& batch : batches_) {
    const at::Tensor q = batch.q.transpose(1, 2);
    const at::Tensor drawn = at::randn(q.sizes(), generator, q.options().device(at::kCPU));
    q.copy_(at::where(q.eq(0).all(1, /*keepdim=*/true), drawn.to(q.device()), q));
  }
}

bool LowRankBucket::has_qs_in(const LowRankMemories& memories) const {
  for (const Batch& batch : batches_)
    for (const Matrix& matrix : batch.matrices) {
      const auto found = memories.find(matrix.name);
      if (found == memories.end() || !found->second.q.defined()) return false;
    }
  return options_.warm_start;
}

void LowRankBucket::take_from(LowRankMemories& memories) {
  for_each([&](const Batch& batch, const Matrix& matrix, std::int64_t index) {
    const auto taken = memories.extract(matrix.name);
    if (!taken) return;
    const auto& [error, q] = taken.mapped();
    if (error.defined() && options_.use_error_feedback) restore(batch.m[index], error, matrix.name);
    if (q.defined() && options_.warm_start) restore(batch.q[index], q, matrix.name);
  });
}

LowRankMemories LowRankBucket::memories() const {
  LowRankMemories memories;
  for_each([&](const Batch& batch, const Matrix& matrix, std::int64_t index) {
    LowRankMemory& memory = memories[matrix.name];
    if (options_.use_error_feedback) memory.error = batch.m[index];
    if (options_.warm_start) memory.q = batch.q[index];
  });
  return memories;
}

bool LowRankBucket::average(const GradientBucket& bucket) {
  load(bucket.buffer);
  sum_ps(bucket);
  if (batches_.empty()) return true;
  average_qs(bucket);
  store(bucket.buffer);
  if (!at::isfinite(qs_).all().item<bool>()) {
    ms_.zero_();
    qs_.zero_();
  }
  return !options_.warm_start || !has_lost_rows();
}

// The errors' memory becomes M.
void LowRankBucket::load(const at::Tensor& buffer) const {
  for_each([&](const Batch& batch, const Matrix& matrix, std::int64_t index) {
    const at::Tensor m = batch.m[index];
    const at::Tensor gradient = matrix.in(buffer);
    options_.use_error_feedback ? m.add_(gradient) : m.copy_(gradient);
  });
}

void LowRankBucket::sum_ps(const GradientBucket& bucket) const {
  for (const Batch& batch : batches_) {
    orthogonalize(batch.q, options_.orthogonalization_epsilon);
    at::Tensor p = batch.p;
    at::bmm_out(p, batch.q, batch.m.transpose(1, 2));
  }
  std::int64_t begin = 0;
  for (const Matrix& matrix : uncompressed_)
    next_of(sums_, begin, {matrix.numel()})
        .copy_(bucket.buffer.narrow(0, matrix.begin, matrix.numel()));
  all_reduce(sums_, bucket.group, ReduceOp::sum, {.label = bucket.label});
  begin = 0;
  for (const Matrix& matrix : uncompressed_) {
    at::Tensor place = bucket.buffer.narrow(0, matrix.begin, matrix.numel());
    place.copy_(next_of(sums_, begin, {matrix.numel()})).div_(bucket.group.size());
  }
}

void LowRankBucket::average_qs(const GradientBucket& bucket) const {
  for (const Batch& batch : batches_) {
    orthogonalize(batch.p, options_.orthogonalization_epsilon);
    at::Tensor q = batch.q;
    at::bmm_out(q, batch.p, batch.m);
  }
  all_reduce(qs_, bucket.group, ReduceOp::sum, {.label = bucket.label});
  qs_.div_(bucket.group.size());
}

// The gradients become P Q^T, and M its error.
void LowRankBucket::store(const at::Tensor& buffer) const {
  for_each([&](const Batch& batch, const Matrix& matrix, std::int64_t index) {
    at::Tensor gradient = matrix.in(buffer);
    at::mm_out(gradient, batch.p[index].t(), batch.q[index]);
    if (options_.use_error_feedback) batch.m[index].sub_(gradient);
  });
}

}  // namespace lockstep::parallel
