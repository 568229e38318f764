// The arithmetic and the memory of PowerSGD for one bucket of gradients.
//
// M is a rank's gradient plus its last error. P = M Q is summed over ranks and orthonormalised,
// then Q = M^T P is averaged over ranks; P Q^T approximates the mean of M. P and Q lie transposed
// in memory. MKL multiplies by a matrix of few rows 4 to 8 times faster than by one of few columns
// (512 x 4096 by rank 4, one core with AVX-512).
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
// > 2. Computes in float for 16-bit types. Gram-Schmidt adds `epsilon` to lengths, and rows that
// depend on those before them become zero. Non-finite rows become NaNs.
LOCKSTEP_API void orthogonalize(const at::Tensor& matrices, double epsilon);

// The part of PowerSGD's state that outlives a pass, for one gradient. Undefined without error
// feedback, or without warm start.
struct LowRankMemory {
  at::Tensor error;  // [rows, columns]
  at::Tensor q;      // [rank, columns]
};
using LowRankMemories = std::map<std::string, LowRankMemory>;

class LowRankBucket {
 public:
  // Collective in the bucket's group.
  LowRankBucket(const GradientBucket& bucket, const PowerSGDOptions& options);

  // Whether `bucket` has the same gradients.
  bool fits(const GradientBucket& bucket) const;

  // Draws every Q from a normal distribution; equal on all ranks.
  void draw(std::uint64_t seed);

  // Draws the rows of zeros in every Q again. A gradient that is zero or has a low rank makes rows
  // zero, and they would remain zero: P = M Q and Q = M^T P.
  void draw_lost_rows(std::uint64_t seed);

  // Whether `memories` has every Q.
  bool has_qs_in(const LowRankMemories& memories) const;

  // Moves the memories of this bucket's gradients here. Errors: misuse, with its name, for a
  // gradient of another shape.
  void take_from(LowRankMemories& memories);

  // Views of the memory of all compressed gradients.
  LowRankMemories memories() const;

  // Blocking: replaces the bucket's gradients by approximations of their means, in two collectives.
  // Returns false, on all ranks, if rows of a Q are zero and draw_lost_rows() is needed. After a
  // non-finite gradient on any rank, all rows of Q and the errors are zero.
  bool average(const GradientBucket& bucket);

  std::int64_t elements() const { return elements_; }
  std::int64_t sent_elements() const { return sums_.numel() + qs_.numel(); }

 private:
  // A matrix in the bucket's buffer.
  struct Place {
    std::int64_t begin = 0;  // In elements.
    std::int64_t rows = 1;
    std::int64_t columns = 1;

    std::int64_t numel() const { return rows * columns; }
    at::Tensor in(const at::Tensor& buffer) const;
    bool operator==(const Place&) const = default;
  };

  // A gradient as a matrix.
  struct Matrix : Place {
    std::string name;
  };

  // Matrices of one shape that are multiplied together.
  struct Batch {
    std::vector<Matrix> matrices;
    std::int64_t rank = 0;
    at::Tensor m = {};  // [matrices, rows, columns]
    at::Tensor p = {};  // [matrices, rank, rows]
    at::Tensor q = {};  // [matrices, rank, columns]
  };

  static Place place_of(const GradientBucket& bucket, std::size_t gradient);
  static std::vector<Matrix> matrices_of(const GradientBucket& bucket);

  // Calls visit(batch, matrix, index) for all matrices; `index` is that in the batch's tensors.
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
