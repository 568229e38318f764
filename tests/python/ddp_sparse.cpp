// Sparse gradients.

// SPDX-License-Identifier: Apache-2.0
#include <torch/optim/adagrad.h>

#include "tests/python/ddp_scenarios.h"
#include "tests/python/ddp_training.h"

namespace {

using lockstep::DistributedDataParallel;

torch::Tensor tokens(const Rig& rig, std::size_t step) {
  return (rig.x(step).abs() * 7).to(torch::kLong) % 20;
}

std::shared_ptr<Words> words(const Rig& rig) {
  return rig.load("Words", std::make_shared<Words>());
}

struct Variant {
  torch::Tensor (*tokens_of)(const Rig& rig, std::size_t step) = tokens;
  bool clips = false;
  bool set_to_none = true;
};

template <class Net>
void train_words(Rig& rig, const std::shared_ptr<Net>& net, torch::optim::Optimizer&& optimizer,
                 const Variant& variant = {}) {
  DistributedDataParallel ddp(net, rig.world(), rig.options());
  for (std::size_t step = 0; step < steps; ++step) {
    optimizer.zero_grad(variant.set_to_none);
    rig.loss(ddp(variant.tokens_of(rig, step)), step).backward();
    if (variant.clips) lockstep::clip_grad_norm_(*net, 0.5);
    optimizer.step();
  }
  rig.record_all(ddp);
}

void sparse_sgd(Rig& rig) {
  const auto net = words(rig);
  train_words(rig, net, sgd(*net));
}

void sparse_bag(Rig& rig) {
  const auto net = rig.load("Bag", std::make_shared<Bag>());
  train_words(rig, net, sgd(*net));
}

void sparse_adagrad(Rig& rig) {
  const auto net = words(rig);
  train_words(rig, net,
              torch::optim::Adagrad(net->parameters(), torch::optim::AdagradOptions(0.1)));
}

void sparse_onto_zeros(Rig& rig) {
  const auto net = words(rig);
  train_words(rig, net, sgd(*net), {.set_to_none = false});
}

// The ranks alternate in having no word.
torch::Tensor none_in_turns(const Rig& rig, std::size_t step) {
  return tokens(rig, step).slice(1, 0, step % rig.ranks() == rig.rank() ? 0 : 12);
}

void sparse_empty(Rig& rig) {
  const auto net = words(rig);
  train_words(rig, net, sgd(*net), {.tokens_of = none_in_turns});
}

void sparse_clipped(Rig& rig) {
  const auto net = words(rig);
  train_words(rig, net, sgd(*net), {.clips = true});
}

void sparse_accumulation(Rig& rig) {
  const auto net = words(rig);
  DistributedDataParallel ddp(net, rig.world(), rig.options());
  auto optimizer = sgd(*net);
  for (std::size_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    {
      const auto alone = ddp.no_sync();
      rig.loss(ddp(tokens(rig, (step + 1) % steps)), step).backward();
    }
    rig.loss(ddp(tokens(rig, step)), step).backward();
    optimizer.step();
  }
  rig.record_all(ddp);
}

}  // namespace

Scenarios sparse_scenarios() {
  return {{"sparse_sgd", sparse_sgd},
          {"sparse_bag", sparse_bag},
          {"sparse_adagrad", sparse_adagrad},
          {"sparse_onto_zeros", sparse_onto_zeros},
          {"sparse_empty", sparse_empty},
          {"sparse_clipped", sparse_clipped},
          {"sparse_accumulation", sparse_accumulation}};
}
