// Tensors with values that look random and are the same everywhere, and their comparison.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <string>

namespace lockstep::test {

// In double precision, between -1 and 1.
inline at::Tensor numbers(at::IntArrayRef sizes, double seed) {
  const at::Tensor x = at::arange(at::empty(sizes).numel(), at::kDouble).view(sizes);
  return (x * 0.37 + seed).sin();
}

// Makes the module one of double precision. Each parameter gets numbers() of another seed.
inline void fill(torch::nn::Module& module) {
  module.to(at::kDouble);
  const at::NoGradGuard no_grad;
  double seed = 1;
  for (auto& item : module.named_parameters())
    item.value().copy_(numbers(item.value().sizes(), ++seed));
}

// Gives each parameter small numbers of its own, in its type.
inline void fill_in_its_types(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  double begin = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    const auto values = at::arange(begin, begin + static_cast<double>(parameter.numel()));
    parameter.copy_(at::sin(values).mul(0.1).view(parameter.sizes()));
    begin += 1;
  }
}

inline void expect_near(const at::Tensor& ours, const at::Tensor& expected, const std::string& what,
                        double bound = 1e-11) {
  ASSERT_TRUE(ours.defined() && expected.defined()) << what;
  ASSERT_EQ(ours.sizes(), expected.sizes()) << what;
  ASSERT_EQ(ours.scalar_type(), expected.scalar_type()) << what;
  if (ours.numel() == 0) return;
  EXPECT_LE((ours - expected).abs().max().item<double>(), bound) << what;
}

}  // namespace lockstep::test
