// PowerSGD for one bucket of gradients.
//
// M is a rank's gradient plus its last error. P = M Q is summed over ranks and orthonormalised,
// then Q = M^T P is averaged. P Q^T approximates the mean of M. In memory, P and Q are transposed:
// MKL multiplies faster by matrices of few rows.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/parallel/gradients/communication_hook.h"
#include "lockstep/parallel/gradients/power_sgd.h"

namespace lockstep::parallel {

// Makes the rows of each matrix [count, r, n], r <= n, orthonormal: by Gram-Schmidt, or by QR for r
// > 2. Gram-Schmidt adds `epsilon` to lengths, sets rows that depend on earlier ones to zero, and
// rows of non-finite length to NaN.
LOCKSTEP_API void orthogonalize(const at::Tensor& matrices, double epsilon);

// A gradient's state between passes. `error` is undefined without error feedback, `q` without warm
// start.
struct LowRankMemory {
  at::Tensor error;  // [rows, columns]
  at::Tensor q;      // [rank, columns]
};
using LowRankMemories = std::map<std::string, LowRankMemory>;

class LowRankBucket {
 public:
  // Collective in the bucket's group.
  LowRankBucket(const GradientBucket& bucket, const PowerSGDOptions& options);

  bool fits(const GradientBucket& bucket) const;

  // Draws every Q, equal on all ranks.
  void draw(std::uint64_t seed);

  // Draws the zero rows of every Q again: P = M Q and Q = M^T P would keep them zero.
  void draw_lost_rows(std::uint64_t seed);

  bool has_qs_in(const LowRankMemories& memories) const;

  // Moves this bucket's memories here. Errors: misuse, with its name, for a gradient of another
  // shape or type.
  void take_from(LowRankMemories& memories);

  LowRankMemories memories() const;

  // Blocking: approximates the means, in at most two collectives. Returns false, on all ranks, if
  // draw_lost_rows() is needed. If a mean Q is not finite, sets all Q and errors to zero.
  bool average(const GradientBucket& bucket);

  std::int64_t elements() const { return elements_; }
  std::int64_t sent_elements() const { return sums_.numel() + qs_.numel(); }

 private:
  struct Place {
    std::int64_t begin = 0;  // In elements.
    std::int64_t rows = 1;
    std::int64_t columns = 1;

    std::int64_t numel() const { return rows * columns; }
    at::Tensor in(const at::Tensor& buffer) const;
    bool operator==(const Place&) const = default;
  };

  struct Matrix : Place {
    std::string name;
  };

  struct Batch {
    std::vector<Matrix> matrices;
    std::int64_t rank = 0;
    at::Tensor m = {};  // [matrices, rows, columns]
    at::Tensor p = {};  // [matrices, rank, rows]
    at::Tensor q = {};  // [matrices, rank, columns]
  };

  static Place place_of(const GradientBucket& bucket, std::size_t gradient);
  static std::vector<Matrix> matrices_of(const GradientBucket& bucket);

  // Calls visit(batch, matrix, index) for compressed matrices; `index`: in the batch's tensors.
  template <class Visit>
  void for_each(const Visit& visit) const;

  bool has_lost_rows() const;
  void divide(const std::vector<Matrix>& matrices);
  void allocate(const GradientBucket& bucket);
  void load(const at::Tensor& buffer) const;
  void sum_ps(const GradientBucket& bucket) const;
  void average_qs(const GradientBucket& bucket) const;
  void store(const at::Tensor& buffer) const;

  const PowerSGDOptions options_;
  const std::vector<Matrix> all_;
  std::int64_t elements_ = 0;
  std::vector<Matrix> uncompressed_;
  std::vector<Batch> batches_;
  at::Tensor sums_;  // Uncompressed gradients, then every P.
  at::Tensor qs_;
  at::Tensor ms_;  // Between passes: the errors.
};

}  // namespace lockstep::parallel
