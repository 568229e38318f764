// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/experts.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <torch/nn/init.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/nn/cut.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/differentiable.h"

namespace lockstep::nn {
namespace {

using Numbers = std::vector<std::int64_t>;

struct Routing {
  torch::Tensor scores;         // [tokens, experts], at least float32.
  torch::Tensor probabilities;  // [tokens, experts]
  torch::Tensor weights;        // [tokens, top_k]
  torch::Tensor chosen;         // [tokens, top_k]: experts.
};

Routing route(const torch::Tensor& x, const torch::Tensor& router, const ExpertsOptions& options) {
  Routing routing;
  const torch::Tensor logits = at::linear(x, router);
  routing.scores =
      logits.to(logits.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat);
  routing.probabilities = at::softmax(routing.scores, -1);
  // topk() does not order equal elements.
  const auto [sorted, order] =
      routing.probabilities.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true);
  routing.weights = sorted.narrow(-1, 0, options.top_k());
  routing.chosen = order.narrow(-1, 0, options.top_k());
  if (options.normalize() && options.top_k() > 1)
    routing.weights = routing.weights / routing.weights.sum(-1, /*keepdim=*/true);
  return routing;
}

// Choices of this rank's tokens, by expert, then by choice, then by token.
struct Rows {
  Numbers chosen;
  Numbers taken;
  torch::Tensor tokens;   // [rows]
  torch::Tensor choices;  // [rows]: choice * tokens + token.
};

Rows rows_of(const torch::Tensor& chosen, const ExpertsOptions& options) {
  const std::int64_t tokens = chosen.size(0), choices = chosen.numel();
  const torch::Tensor by_choice = chosen.t().contiguous();
  const auto* const expert_of = by_choice.const_data_ptr<std::int64_t>();
  Rows rows;
  rows.chosen.resize(static_cast<std::size_t>(options.num_experts()));
  for (std::int64_t i = 0; i < choices; ++i) ++rows.chosen[static_cast<std::size_t>(expert_of[i])];

  std::int64_t capacity = choices;
  if (options.capacity_factor())
    capacity = static_cast<std::int64_t>(
        std::min(std::ceil(*options.capacity_factor() * static_cast<double>(choices) /
                           static_cast<double>(options.num_experts())),
                 static_cast<double>(choices)));
  Numbers next{0}, end;
  for (const std::int64_t wanted : rows.chosen) {
    rows.taken.push_back(std::min(wanted, capacity));
    end.push_back(next.back() + rows.taken.back());
    next.push_back(end.back());
  }
  rows.tokens = torch::empty({c10::sum_integers(rows.taken)}, torch::kLong);
  rows.choices = torch::empty_like(rows.tokens);
  auto* const token = rows.tokens.mutable_data_ptr<std::int64_t>();
  auto* const choice = rows.choices.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < choices; ++i) {
    const auto expert = static_cast<std::size_t>(expert_of[i]);
    if (next[expert] == end[expert]) continue;
    token[next[expert]] = i % tokens;
    choice[next[expert]++] = i;
  }
  return rows;
}

struct Census {
  torch::Tensor taken;   // [ranks of the group, experts]: rows.
  torch::Tensor chosen;  // [experts]
  std::int64_t tokens;
  std::int64_t dropped;
};

const std::optional<ProcessGroup>& replicas_of(const CutTo& cut) {
  return std::get<ExpertParallel>(cut.style).replicas;
}

int ranks_of(const std::optional<CutTo>& cut) {
  if (!cut) return 1;
  return cut->group.size() * (replicas_of(*cut) ? replicas_of(*cut)->size() : 1);
}

Census census_of(const Rows& rows, std::int64_t tokens, const std::optional<CutTo>& cut) {
  Numbers mine = rows.taken;
  mine.insert(mine.end(), rows.chosen.begin(), rows.chosen.end());
  mine.push_back(tokens);
  mine.push_back(c10::sum_integers(rows.chosen) - c10::sum_integers(rows.taken));
  const torch::Tensor numbers = at::tensor(mine, torch::kLong);
  torch::Tensor all = numbers.unsqueeze(0), totals = numbers;
  if (cut)
    naming_errors(cut->name, [&] {
      all = all_gather(numbers, cut->group, label_of(*cut));
      totals = all.sum(0);
      if (replicas_of(*cut)) all_reduce(totals, *replicas_of(*cut), ReduceOp::sum, label_of(*cut));
    });
  const auto experts = static_cast<std::int64_t>(rows.chosen.size());
  return {all.narrow(1, 0, experts), totals.narrow(0, experts, experts),
          totals[2 * experts].item<std::int64_t>(), totals[2 * experts + 1].item<std::int64_t>()};
}

Numbers numbers_of(const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.contiguous();
  const auto* const data = flat.const_data_ptr<std::int64_t>();
  return {data, data + flat.numel()};
}

torch::Tensor of_own_experts(const torch::Tensor& counts, const std::optional<CutTo>& cut) {
  if (!cut) return counts;
  const std::int64_t experts = counts.size(1) / cut->group.size();
  return counts.narrow(1, cut->group.rank() * experts, experts);
}

}  // namespace

ExpertsOptions::ExpertsOptions(std::int64_t features, std::int64_t hidden_features,
                               std::int64_t num_experts)
    : features_(features), hidden_features_(hidden_features), num_experts_(num_experts) {}

ExpertsImpl::ExpertsImpl(ExpertsOptions experts) : options(std::move(experts)) {
  require(
      options.features() > 0 && options.hidden_features() > 0 && options.num_experts() > 0, [&] {
        return "lockstep::nn::Experts: features " + std::to_string(options.features()) +
               ", hidden_features " + std::to_string(options.hidden_features()) +
               " and num_experts " + std::to_string(options.num_experts()) + " must be positive";
      });
  require(options.top_k() >= 1 && options.top_k() <= options.num_experts(), [&] {
    return "lockstep::nn::Experts: top_k " + std::to_string(options.top_k()) +
           " is not one of 1 to " + std::to_string(options.num_experts()) + " experts";
  });
  require(options.capacity_factor().value_or(1) > 0, [&] {
    return "lockstep::nn::Experts: capacity_factor " + std::to_string(*options.capacity_factor()) +
           " must be positive";
  });
  reset();
}

void ExpertsImpl::reset() {
  const std::int64_t experts = options.num_experts(), features = options.features(),
                     hidden = options.hidden_features();
  router = register_parameter("router", torch::empty({experts, features}));
  gate = register_parameter(
      "gate", options.swiglu() ? torch::empty({experts, hidden, features}) : torch::Tensor(),
      /*requires_grad=*/options.swiglu());
  up = register_parameter("up", torch::empty({experts, hidden, features}));
  down = register_parameter("down", torch::empty({experts, features, hidden}));
  reset_parameters();
}

void ExpertsImpl::reset_parameters() {
  for (torch::Tensor* const weight : {&router, &gate, &up, &down}) {
    if (!weight->defined()) continue;
    const double bound = 1 / std::sqrt(static_cast<double>(weight->size(-1)));
    torch::nn::init::uniform_(*weight, -bound, bound);
  }
}

void ExpertsImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "lockstep::nn::Experts(features=" << options.features()
         << ", hidden_features=" << options.hidden_features()
         << ", num_experts=" << options.num_experts() << ", top_k=" << options.top_k()
         << ", normalize=" << options.normalize() << ", swiglu=" << options.swiglu();
  if (options.capacity_factor()) stream << ", capacity_factor=" << *options.capacity_factor();
  print_end(stream);
}

ExpertsOutput ExpertsImpl::forward(const torch::Tensor& input) {
  require_width(input, options.features());
  require(input.dim() > 0 && input.size(-1) == options.features(), [&] {
    return "lockstep::nn::Experts: the input's last size is " +
           (input.dim() > 0 ? std::to_string(input.size(-1)) : "missing") + ", and there are " +
           std::to_string(options.features()) + " features";
  });
  if (!input.is_cpu())
    throw Error(
        Fault::unsupported,
        "lockstep::nn::Experts: only in CPU memory, and the input is on " + input.device().str());
  const torch::Tensor x = input.reshape({-1, options.features()});
  const Routing routing = naming_layer([&] { return route(x, router, options); });
  const Rows rows = rows_of(routing.chosen, options);
  const Census census = census_of(rows, x.size(0), cut());

  const torch::Tensor results = sent(x.index_select(0, rows.tokens), census.taken);
  const torch::Tensor weights = routing.weights.t().reshape(-1).index_select(0, rows.choices);
  const torch::Tensor weighted = (results * weights.unsqueeze(1)).to(results.scalar_type());
  const torch::Tensor output =
      at::zeros(x.sizes(), results.options()).index_add(0, rows.tokens, weighted);

  const auto tokens = static_cast<double>(std::max<std::int64_t>(census.tokens, 1));
  const double part = ranks_of(cut()) / tokens;  // The mean over ranks divides by all tokens.
  const double fraction =
      static_cast<double>(options.num_experts()) / (tokens * static_cast<double>(options.top_k()));
  return {
      .output = output.view(input.sizes()),
      .balance_loss = (routing.probabilities.sum(0) * census.chosen).sum() * (fraction * part),
      .z_loss = at::logsumexp(routing.scores, -1).pow(2).sum() * part,
      .tokens_per_expert = census.chosen.clone(),
      .dropped = census.dropped,
  };
}

// Sends `rows` to their experts' ranks and returns the results.
torch::Tensor ExpertsImpl::sent(const torch::Tensor& rows, const torch::Tensor& counts) const {
  if (!cut()) return computed(rows, counts);
  const ProcessGroup& group = cut()->group;
  const Numbers there = numbers_of(counts[group.rank()].view({group.size(), -1}).sum(/*dim=*/1));
  const torch::Tensor own = of_own_experts(counts, cut());
  const Numbers here = numbers_of(own.sum(/*dim=*/1));
  const torch::Tensor received =
      all_to_all_rows_in_region(rows, group, there, here, label_of(*cut()));
  return all_to_all_rows_in_region(computed(received, own), group, here, there, label_of(*cut()));
}

// `counts`: [ranks, experts], in the order of `rows`. Includes experts without rows, to define
// gradients on all ranks.
torch::Tensor ExpertsImpl::computed(const torch::Tensor& rows, const torch::Tensor& counts) const {
  const auto split = [](const torch::Tensor& parameter) { return parameter.unbind(0); };
  const auto gates = gate.defined() ? split(averaged(gate, "gate")) : std::vector<torch::Tensor>{};
  const auto ups = split(averaged(up, "up")), downs = split(averaged(down, "down"));
  std::vector<torch::Tensor> parts = rows.split_with_sizes(numbers_of(counts));
  for (std::size_t expert = 0; expert < ups.size(); ++expert) {
    std::vector<torch::Tensor> of_ranks;
    for (std::size_t i = expert; i < parts.size(); i += ups.size()) of_ranks.push_back(parts[i]);
    const torch::Tensor x = at::cat(of_ranks);
    const torch::Tensor hidden =
        gates.empty() ? at::gelu(at::linear(x, ups[expert]))
                      : at::silu(at::linear(x, gates[expert])) * at::linear(x, ups[expert]);
    const auto results =
        at::linear(hidden, downs[expert])
            .split_with_sizes(numbers_of(counts.select(1, static_cast<std::int64_t>(expert))));
    for (std::size_t rank = 0; rank < results.size(); ++rank)
      parts[rank * ups.size() + expert] = results[rank];
  }
  return at::cat(parts);
}

// Its gradient is the mean over all ranks' losses.
torch::Tensor ExpertsImpl::averaged(const torch::Tensor& parameter, const char* what) const {
  if (!cut()) return parameter;
  const auto& replicas = replicas_of(*cut());
  const std::string name = cut()->name + "." + what;
  const torch::Tensor here =
      replicas ? copy_to_parallel_region(parameter, *replicas, {.label = name}) : parameter;
  const torch::Tensor result = here.view_as(here);
  const int ranks = ranks_of(cut());
  if (result.requires_grad())
    result.register_hook([ranks](const torch::Tensor& gradient) { return gradient / ranks; });
  return result;
}

std::string ExpertsImpl::mismatch(const ParallelStyle& style, int ranks) const {
  return std::holds_alternative<ExpertParallel>(style)
             ? mismatch_of("num_experts", options.num_experts(), 1, ranks)
             : cannot_cut(style, "mixture of experts");
}

Layouts ExpertsImpl::cut_parameters() {
  Layouts layouts;
  const auto cut_experts = [&](const char* name, torch::Tensor& parameter) {
    ParameterLayout layout = cut_parameter(parameter, 0, 1, cut()->group);
    layout.is_averaged = true;
    layout.replicas = replicas_of(*cut());
    layouts.emplace(name, std::move(layout));
  };
  if (gate.defined()) cut_experts("gate", gate);
  cut_experts("up", up);
  cut_experts("down", down);
  return layouts;
}

}  // namespace lockstep::nn
