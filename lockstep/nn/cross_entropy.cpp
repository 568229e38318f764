// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::string_view function = "cross_entropy";

// This rank's: [begin, begin + count) of `all`.
struct Classes {
  std::int64_t begin = 0, count = 0, all = 0;
};

// With the target's digest in the label, different targets cause a mismatch.
Classes classes_of(const at::Tensor& logits, const at::Tensor& target, const ProcessGroup& group) {
  const std::string label = std::string(function) + " of " + std::to_string(target.size(0)) +
                            " targets with digest " + std::to_string(digest_of(target));
  const auto counts = naming_errors(
      function, [&] { return all_gather_value(logits.size(1), group, {.label = label}); });
  const auto own = counts.begin() + group.rank();
  return {
      std::accumulate(counts.begin(), own, std::int64_t{0}), *own,
      std::accumulate(own, counts.end(), std::accumulate(counts.begin(), own, std::int64_t{0}))};
}

void require_shapes(const at::Tensor& logits, const at::Tensor& target) {
  require(logits.dim() == 2 && target.dim() == 1 && logits.size(0) == target.size(0) &&
              logits.is_floating_point() && target.scalar_type() == at::kLong,
          "cross_entropy: logits are [N, classes], targets [N] of int64");
}

// Equal targets give all ranks the same result.
void require_classes(const at::Tensor& target, const at::Tensor& ignored, const Classes& classes) {
  const at::Tensor bad =
      ((target < 0).logical_or_(target >= classes.all)).logical_and_(ignored.logical_not());
  require(!bad.any().item<bool>(), [&] {
    return "cross_entropy: target " +
           std::to_string(target.masked_select(bad)[0].item<std::int64_t>()) + " is not one of " +
           std::to_string(classes.all) + " classes";
  });
}

// Per row: softmax = exp(x - largest) / sum.
struct OwnSoftmax {
  at::Tensor softmax, largest, sum;
};

OwnSoftmax softmax_of(const at::Tensor& logits, at::ScalarType type) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  OwnSoftmax own{.softmax = at::softmax(logits, 1, type), .largest = {}, .sum = {}};
  if (logits.size(1) == 0) {
    own.largest = at::full({logits.size(0)}, -infinity, own.softmax.options());
    own.sum = at::zeros_like(own.largest);
    return own;
  }
  own.largest = logits.amax(1).to(type);
  own.sum = own.softmax.amax(1).reciprocal_();  // The largest one is exp(0) / sum.
  const at::Tensor empty = own.largest == -infinity;
  if (empty.any().item<bool>()) {
    own.softmax.masked_fill_(empty.unsqueeze(1), 0);
    own.sum.masked_fill_(empty, 0);
  }
  return own;
}

// float32 under autocast, like LibTorch's losses: GradScaler's initial scale, 65536, is infinite in
// float16.
at::ScalarType type_of_loss(const at::Tensor& logits, at::ScalarType computed) {
  return at::autocast::is_autocast_enabled(logits.device().type()) ? computed
                                                                   : logits.scalar_type();
}

// With m a row's largest logit: loss = log(sum(exp(x - m))) - (x[target] - m). Backward: d x =
// (softmax - onehot(target)) * d loss.
struct VocabularyParallel : torch::autograd::Function<VocabularyParallel> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& target, const ProcessGroup& group,
                            const CrossEntropyOptions& options) {
    const Classes classes = classes_of(logits, target, group);
    const at::Tensor ignored = target == options.ignore_index;
    require_classes(target, ignored, classes);
    const bool is_half = at::isReducedFloatingType(logits.scalar_type());
    const at::ScalarType type = is_half ? at::kFloat : logits.scalar_type();
    const OwnSoftmax own = softmax_of(logits, type);

    const at::Tensor here = target - classes.begin;
    const at::Tensor elsewhere = (here < 0).logical_or_(here >= classes.count).logical_or_(ignored);
    const at::Tensor index = here.masked_fill(elsewhere, 0).unsqueeze(1);
    const at::Tensor picked =
        classes.count > 0 ? logits.gather(1, index).squeeze(1).to(type).masked_fill_(elsewhere, 0)
                          : at::zeros_like(own.largest);
    const auto all = naming_errors(function, [&] {
      return all_gather(at::stack({own.largest, own.sum, picked}), group, {.label = function})
          .unbind(1);  // [ranks, N] each.
    });
    const at::Tensor largest = all[0].amax(0);
    const at::Tensor sums = (all[0] - largest).exp_().mul_(all[1]);  // Sums of exp(x - largest).
    const at::Tensor sum = sums.sum(0);

    at::Tensor loss = (sum.log() - (all[2].sum(0) - largest)).masked_fill_(ignored, 0);
    at::Tensor scale = ignored.logical_not().to(type);  // d result / d loss of each row.
    if (options.reduction == at::Reduction::Mean) {
      const at::Tensor counted = scale.sum();
      scale = scale / counted;
      loss = loss.sum() / counted;
    } else if (options.reduction == at::Reduction::Sum) {
      loss = loss.sum();
    }
    context->save_for_backward({own.softmax, index, elsewhere, scale, sums[group.rank()] / sum});
    context->saved_data["type"] = logits.scalar_type();
    return loss.to(type_of_loss(logits, type));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled())
      throw Error(Fault::unsupported,
                  "cross_entropy: backward() with create_graph is not supported");
    const auto saved = context->get_saved_variables();
    const at::Tensor &softmax = saved[0], &index = saved[1], &elsewhere = saved[2];
    const at::Tensor rows = (gradients[0].to(softmax.scalar_type()) * saved[3]).unsqueeze(1);
    at::Tensor gradient = softmax * (rows * saved[4].unsqueeze(1));
    if (gradient.size(1) > 0)
      gradient.scatter_add_(1, index, rows.neg().masked_fill_(elsewhere.unsqueeze(1), 0));
    return {gradient.to(context->saved_data["type"].toScalarType()), {}, {}, {}};
  }
};

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                         const ProcessGroup& group, const CrossEntropyOptions& options) {
  require_shapes(logits, target);
  return VocabularyParallel::apply(logits, target, group, options);
}

}  // namespace lockstep
