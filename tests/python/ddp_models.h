// Lockstep's side of ddp_models.py: small modules, each with a difficulty for
// DistributedDataParallel.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

struct Mlp : torch::nn::Module {
  explicit Mlp(std::int64_t in = 12, std::int64_t hidden = 32, std::int64_t out = 4)
      : linear1(in, hidden), linear2(hidden, hidden), linear3(hidden, out) {
    register_module("linear1", linear1);
    register_module("linear2", linear2);
    register_module("linear3", linear3);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(linear1(x.to(linear1->weight.scalar_type())));
    return linear3(torch::relu(linear2(x)));
  }

  torch::nn::Linear linear1, linear2, linear3;
};

// Takes another branch in each forward(); no pass uses `never`.
struct Branches : torch::nn::Module {
  Branches() : trunk(12, 16), head(16, 4), a(16, 4), b(16, 4), never(16, 4) {
    register_module("trunk", trunk);
    register_module("head", head);
    register_module("a", a);
    register_module("b", b);
    register_module("never", never);
  }

  torch::Tensor forward(torch::Tensor x, std::size_t branch) {
    x = torch::relu(trunk(x));
    const auto y = head(x);  // Called first, as in Python: gradients come in the opposite order.
    if (branch == 0) return y + a(x);
    if (branch == 1) return y + b(x);
    return y;
  }

  torch::nn::Linear trunk, head, a, b, never;
};

// One layer under two names, used twice.
struct Tied : torch::nn::Module {
  Tied() : first(12, 12), head(12, 4) {
    register_module("first", first);
    register_module("second", first);
    register_module("head", head);
  }

  torch::Tensor forward(torch::Tensor x) { return head(torch::relu(first(torch::relu(first(x))))); }

  torch::nn::Linear first, head;
};

// Alternates layers of float and double.
struct Mixed : torch::nn::Module {
  Mixed() : linear1(12, 16), linear2(16, 16), linear3(16, 16), linear4(16, 4) {
    register_module("linear1", linear1);
    register_module("linear2", linear2);
    register_module("linear3", linear3);
    register_module("linear4", linear4);
    linear2->to(torch::kDouble);
    linear4->to(torch::kDouble);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(linear2(torch::relu(linear1(x)).to(torch::kDouble)));
    return linear4(torch::relu(linear3(x.to(torch::kFloat))).to(torch::kDouble));
  }

  torch::nn::Linear linear1, linear2, linear3, linear4;
};

// Has a layer of complex weights, and a complex buffer, between real ones. Its values follow from
// `factor`.
struct Complex : torch::nn::Module {
  explicit Complex(double factor)
      : linear1(12, 16),
        weight(torch::empty({8, 8}, torch::kComplexFloat)),
        phase(torch::empty({8}, torch::kComplexFloat)),
        linear2(16, 4) {
    register_module("linear1", linear1);
    register_parameter("weight", weight);
    register_buffer("phase", phase);
    register_module("linear2", linear2);
    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& tensor :
         {linear1->weight, linear1->bias, weight, phase, linear2->weight, linear2->bias}) {
      torch::Tensor reals = tensor.is_complex() ? torch::view_as_real(tensor) : tensor;
      reals.copy_(torch::arange(reals.numel()).sin().mul(factor).view(reals.sizes()));
    }
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto z = torch::view_as_complex(linear1(x).tanh().view({-1, 8, 2}));
    return linear2(torch::view_as_real(z.matmul(weight) * phase).flatten(1));
  }

  torch::nn::Linear linear1;
  torch::Tensor weight, phase;
  torch::nn::Linear linear2;
};

// Has an embedding with sparse gradients.
struct Words : torch::nn::Module {
  Words()
      : embedding(torch::nn::EmbeddingOptions(20, 8).sparse(true)), linear1(8, 16), linear2(16, 4) {
    register_module("embedding", embedding);
    register_module("linear1", linear1);
    register_module("linear2", linear2);
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    return linear2(torch::relu(linear1(embedding(tokens).sum(1))));
  }

  torch::nn::Embedding embedding;
  torch::nn::Linear linear1, linear2;
};

// Sums the rows of a bag with sparse gradients, between layers.
struct Bag : torch::nn::Module {
  Bag()
      : bag(torch::nn::EmbeddingBagOptions(20, 8).mode(torch::kSum).sparse(true)),
        embedding(torch::nn::EmbeddingOptions(20, 8).sparse(true)),
        linear(8, 4) {
    register_module("bag", bag);
    register_module("embedding", embedding);
    register_module("linear", linear);
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto sums = bag(tokens);  // First, as in Python: gradients come in the opposite order.
    return linear(torch::relu(sums + embedding(tokens).sum(1)));
  }

  torch::nn::EmbeddingBag bag;
  torch::nn::Embedding embedding;
  torch::nn::Linear linear;
};

struct Norm : torch::nn::Module {
  Norm() : linear1(12, 16), norm(16), linear2(16, 4) {
    register_module("linear1", linear1);
    register_module("norm", norm);
    register_module("linear2", linear2);
  }

  torch::Tensor forward(const torch::Tensor& x) { return linear2(torch::relu(norm(linear1(x)))); }

  torch::nn::Linear linear1;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear linear2;
};
