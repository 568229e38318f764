// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/layouts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "tools/plan/divided_model.h"

namespace lockstep::tools {
namespace {

constexpr double milliseconds = 1000;

std::vector<int> divisors_of(int value, int most = std::numeric_limits<int>::max()) {
  std::vector<int> divisors;
  for (int each = 1; each <= std::min(value, most); ++each)
    if (value % each == 0) divisors.push_back(each);
  return divisors;
}

// --- Layouts that cannot be ----------------------------------------------------------------------

// Empty if `tp` can split all layers.
std::string refusal_of_tp(const ModelProfile& profile, const Machine& machine, int tp) {
  const int most = machine.ranks_per_host();
  if (tp > most || most % tp != 0)
    return "tp " + std::to_string(tp) + " does not divide the " + std::to_string(most) +
           " ranks of a host, and layers that are cut over hosts would communicate between them";
  if (tp > 1 && profile.loss.parts.size() == 1 && profile.kinds.front().parts.size() == 1)
    return "the program does not cut layers (tp)";
  std::vector<const LayerKind*> kinds;
  for (const LayerKind& kind : profile.kinds) kinds.push_back(&kind);
  kinds.push_back(&profile.loss);
  for (const LayerKind* kind : kinds) {
    const LayerPart* const part = part_of(*kind, tp);
    if (part == nullptr) return "tp " + std::to_string(tp) + " was not measured";
    if (!part->refusal.empty()) return "tp " + std::to_string(tp) + ": " + part->refusal;
  }
  return "";
}

std::string refusal_of_cp(const ModelProfile& profile, const Machine& machine,
                          const Layout& layout) {
  if (layout.cp == 1) return "";
  if (!profile.has_context_parallel) return "the program does not cut sequences (cp)";
  if (layout.pp > 1) return "cp is not for pipelines: their sequences are whole";
  if (machine.ranks_per_host() % (layout.cp * layout.tp) != 0)
    return "cp would move keys and values between hosts in every layer: this is not predicted";
  return "";
}

std::string refusal_of(const ModelProfile& profile, const Machine& machine, const Layout& layout) {
  const int ranks_of_stage = machine.ranks / layout.pp;
  const int layers = static_cast<int>(profile.kind_of_layer.size());
  if (std::string text = refusal_of_tp(profile, machine, layout.tp); !text.empty()) return text;
  if (std::string text = refusal_of_cp(profile, machine, layout); !text.empty()) return text;
  if (layout.pp > 1 && !profile.has_pipeline) return "the program has no pipeline";
  if (layout.pp > layers)
    return "pp " + std::to_string(layout.pp) + " needs as many layers, but there are " +
           std::to_string(layers);
  if (profile.rows % (layout.dp * layout.microbatches) != 0)
    return "dp " + std::to_string(layout.dp) + " does not divide a batch of " +
           std::to_string(profile.rows) + " rows";
  const int most = machine.ranks_per_host();
  if (most % ranks_of_stage != 0 && ranks_of_stage % most != 0)
    return "the " + std::to_string(ranks_of_stage) + " ranks of a stage lie on parts of hosts of " +
           std::to_string(most) + " ranks";
  if (layout.fsdp && !profile.has_fully_sharded) return "the program is not fully sharded (fsdp)";
  return "";
}

// --- One layout ----------------------------------------------------------------------------------

class Predictor {
 public:
  Predictor(const ModelProfile& profile, const Machine& machine, const Layout& layout)
      : profile_(profile), machine_(machine), layout_(layout), model_(profile, layout) {}

  PredictedLayout whole() const {
    const PipelineOrder order = make_pipeline_order(PipelineSchedule::gpipe, {});
    PredictedLayout predicted = with(order, {});
    predicted.bubble = 0;
    return predicted;
  }

  PredictedLayout pipelined() const {
    PredictedLayout best{.layout = layout_};
    using enum PipelineSchedule;
    for (const auto schedule : {one_f_one_b, gpipe, interleaved, looped_bfs, zero_bubble, zbv}) {
      PredictedLayout tried;
      try {
        tried = scheduled(schedule);
      } catch (const Error& error) {
        if (error.fault() != Fault::misuse) throw;
        if (best.impossible.empty() && !best.schedule) best.impossible = bare_text(error);
        continue;
      }
      if (!best.schedule || is_better(tried, best)) best = tried;
    }
    return best;
  }

  PredictedLayout scheduled(PipelineSchedule schedule) const {
    const PipelineOrder order =
        make_pipeline_order(schedule, {.ranks = layout_.pp, .microbatches = layout_.microbatches});
    require(order.stages() <= model_.layers(), [&] {
      return std::to_string(order.stages()) + " stages need as many layers, but there are " +
             std::to_string(model_.layers());
    });
    PredictedLayout predicted = with(order, model_.cut_into(order.stages()));
    predicted.schedule = schedule;
    return predicted;
  }

  SimulatedPipeline simulated(PipelineSchedule schedule) const {
    const PipelineOrder order =
        make_pipeline_order(schedule, {.ranks = layout_.pp, .microbatches = layout_.microbatches});
    auto costs = stage_costs(order, model_.stages(order, model_.cut_into(order.stages())));
    for (PipelineStageCost& cost : costs)
      for (double* const seconds : {&cost.forward, &cost.backward_input, &cost.backward_weight,
                                    &cost.whole_backward, &cost.send})
        *seconds *= milliseconds;
    return simulate(order, costs);
  }

  static bool is_better(const PredictedLayout& one, const PredictedLayout& other) {
    if (one.fits != other.fits) return one.fits;
    return one.fits ? one.step < other.step : one.host_bytes < other.host_bytes;
  }

 private:
  int replicas() const { return layout_.dp * layout_.cp; }
  int ranks_of_stage() const { return machine_.ranks / layout_.pp; }
  int hosts_of_group() const {  // Hosts of the ranks of dp and cp.
    return std::max(1, ranks_of_stage() / machine_.ranks_per_host());
  }
  int host_of(int rank) const { return rank / machine_.ranks_per_host(); }
  int host_of(int pipeline_rank, int offset) const {
    return host_of(pipeline_rank * ranks_of_stage() + offset);
  }

  // In seconds and bytes. Senders themselves copy into shared memory.
  std::vector<PipelineStageCost> stage_costs(const PipelineOrder& order,
                                             const std::vector<StageCosts>& stages) const {
    std::vector<PipelineStageCost> costs;
    for (const StageCosts& stage : stages)
      costs.push_back({.forward = stage.forward,
                       .backward_input = stage.backward_input,
                       .backward_weight = stage.backward_weight,
                       .whole_backward = stage.backward,
                       .activation_bytes = stage.kept});
    for (std::size_t stage = 0; stage + 1 < stages.size(); ++stage) {
      const int from = order.rank_of_stage[stage], to = order.rank_of_stage[stage + 1];
      if (from == to) continue;
      const double bytes = stages[stage].output;
      if (const int pairs = pairs_between_hosts(from, to); pairs > 0) {
        costs[stage].send = bytes * pairs / machine_.link_bandwidth + machine_.link_latency;
      } else if (profile_.copy_bandwidth > 0) {
        const double copy = bytes / profile_.copy_bandwidth;
        costs[stage].forward += copy;
        costs[stage + 1].backward_input += copy;
        costs[stage + 1].whole_backward += copy;
      }
    }
    return costs;
  }

  // Pairs of adjacent ranks in two stages that use one host's link at once.
  int pairs_between_hosts(int from, int to) const {
    const int pairs = std::min(ranks_of_stage(), machine_.ranks_per_host());
    return host_of(from, 0) == host_of(to, 0) ? 0 : pairs;
  }

  PredictedLayout with(const PipelineOrder& order, const std::vector<int>& cut) const {
    PredictedLayout predicted{.layout = layout_};
    predicted.cut = cut;
    const std::vector<StageCosts> stages = model_.stages(order, cut);
    const std::vector<StageCosts> ranks = model_.ranks(order, stages);
    const SimulatedPipeline pipeline = simulate(order, stage_costs(order, stages));
    predicted.compute = pipeline.time + attention_copies(stages);
    predicted.bubble = pipeline.bubble;
    for (const StageCosts& rank : ranks)
      predicted.optimizer =
          std::max(predicted.optimizer, rank.optimizer / (layout_.fsdp ? replicas() : 1));
    add_memory(predicted, order, stages, ranks);
    add_traffic(predicted, order, stages, ranks, cut);
    predicted.step = predicted.compute + predicted.reduce + predicted.optimizer;
    predicted.fits = predicted.host_bytes <= machine_.host_bytes;
    return predicted;
  }

  // Keys and values are copied to shared memory twice, their gradients back. Assumes attention in
  // most layers, and keys as large as the output.
  double attention_copies(const std::vector<StageCosts>& stages) const {
    constexpr double copies = 6;
    if (layout_.cp == 1 || profile_.copy_bandwidth <= 0) return 0;
    return copies * stages.front().output * model_.layers() / profile_.copy_bandwidth;
  }

  // --- Memory ---

  // One pipeline's messages between a host's ranks; `offset` selects the pipeline.
  double slot_bytes(const PipelineOrder& order, const PipelineSlots& slots,
                    const std::vector<StageCosts>& stages, int offset, int host) const {
    double bytes = 0;
    for (std::size_t stage = 0; stage + 1 < stages.size(); ++stage) {
      const int from = host_of(order.rank_of_stage[stage], offset);
      if (from != host || from != host_of(order.rank_of_stage[stage + 1], offset)) continue;
      bytes += (slots.outputs[stage] + slots.gradients[stage]) * stages[stage].output;
    }
    return bytes;
  }

  void add_memory(PredictedLayout& predicted, const PipelineOrder& order,
                  const std::vector<StageCosts>& stages,
                  const std::vector<StageCosts>& ranks) const {
    std::vector<double> hosts(as_index(machine_.hosts), profile_.library_bytes);
    const PipelineSlots in_slots = slots_of(order);
    const std::vector<double> peaks = model_.peaks(order, stages);
    for (int offset = 0; offset < ranks_of_stage(); ++offset) {
      std::set<int> seen;
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const int host = host_of(static_cast<int>(rank), offset);
        const double slots = slot_bytes(order, in_slots, stages, offset, host);
        const double bytes = model_.own_bytes(ranks[rank], hosts_of_group()) + peaks[rank];
        hosts[as_index(host)] += bytes + profile_.process_bytes;
        if (seen.insert(host).second) hosts[as_index(host)] += slots;
        // A host's ranks with the same tp rank share memory; the first counts it.
        if (offset % machine_.ranks_per_host() < layout_.tp)
          hosts[as_index(host)] += model_.shared_bytes(ranks[rank], hosts_of_group());
        if (const double all = bytes + model_.shared_bytes(ranks[rank], hosts_of_group()) + slots;
            all > predicted.rank_bytes) {
          predicted.rank_bytes = all;
          predicted.activation_bytes = peaks[rank];
        }
      }
    }
    predicted.host_bytes = *std::max_element(hosts.begin(), hosts.end());
  }

  // --- Communication ---

  // Seconds for a host's groups of `ranks` ranks to reduce `bytes`.
  double reduce_time(int ranks, double bytes, int tensors) const {
    const ReduceSample* least = nullptr;
    const ReduceSample* most = nullptr;
    for (const ReduceSample& sample : profile_.reduces)
      if (sample.ranks == ranks) {
        if (least == nullptr) least = &sample;
        most = &sample;
      }
    if (ranks == 1 || least == nullptr) return 0;
    const auto time = [this](const ReduceSample& sample) {
      return layout_.fsdp ? sample.reduce_scatter : sample.all_reduce;
    };
    return tensors * time(*least) + bytes * time(*most) / most->bytes;
  }

  // Sent by a host in a step for one tensor parallel rank of a stage: gradients' all_reduce, or
  // reduce_scatter and weights' gathers.
  double bytes_between_hosts(const StageCosts& rank) const {
    const int hosts = hosts_of_group();
    const double part = static_cast<double>(hosts - 1) / hosts;
    if (!layout_.fsdp) return 2 * part * rank.gradients;
    return part * (rank.gradients + 2 * layout_.microbatches * rank.parameters);
  }

  void add_traffic(PredictedLayout& predicted, const PipelineOrder& order,
                   const std::vector<StageCosts>& stages, const std::vector<StageCosts>& ranks,
                   const std::vector<int>& cut) const {
    std::vector<double> gradients(as_index(machine_.hosts)), hosts(as_index(machine_.hosts));
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const double between = bytes_between_hosts(ranks[rank]);
      for (int host = 0; host < hosts_of_group(); ++host)
        gradients[as_index(host_of(static_cast<int>(rank), 0) + host)] += between * layout_.tp;
      predicted.reduce =
          std::max(predicted.reduce, reduce_time(replicas() / hosts_of_group(),
                                                 ranks[rank].gradients, ranks[rank].reductions));
    }
    add_ties(gradients, order, cut);
    for (int offset = 0; offset < ranks_of_stage(); ++offset)
      for (std::size_t stage = 0; stage + 1 < stages.size(); ++stage) {
        const int from = host_of(order.rank_of_stage[stage], offset);
        const int to = host_of(order.rank_of_stage[stage + 1], offset);
        if (from == to) continue;
        hosts[as_index(from)] += layout_.microbatches * stages[stage].output;
        hosts[as_index(to)] += layout_.microbatches * stages[stage].output;
      }
    const double most = *std::max_element(gradients.begin(), gradients.end());
    if (most > 0) predicted.reduce += most / machine_.link_bandwidth + 2 * machine_.link_latency;
    for (std::size_t host = 0; host < hosts.size(); ++host)
      predicted.link_bytes = std::max(predicted.link_bytes, hosts[host] + gradients[host]);
  }

  void add_ties(std::vector<double>& hosts, const PipelineOrder& order,
                const std::vector<int>& cut) const {
    for (const TiedLayers& tie : profile_.ties)
      for (int offset = 0; offset < ranks_of_stage(); ++offset) {
        const int one = host_of(order.rank_of_stage[as_index(stage_of(tie.layer, cut))], offset);
        const int other =
            host_of(order.rank_of_stage[as_index(stage_of(tie.same_as, cut))], offset);
        if (one == other) continue;
        hosts[as_index(one)] += model_.bytes_of(tie);
        hosts[as_index(other)] += model_.bytes_of(tie);
      }
  }

  const ModelProfile& profile_;
  const Machine machine_;
  const Layout layout_;
  const DividedModel model_;
};

PredictedLayout predict(const ModelProfile& profile, const Machine& machine, const Layout& layout) {
  PredictedLayout predicted{.layout = layout, .impossible = refusal_of(profile, machine, layout)};
  if (!predicted.impossible.empty()) return predicted;
  const Predictor predictor(profile, machine, layout);
  return layout.pp == 1 ? predictor.whole() : predictor.pipelined();
}

// More than eight microbatches per stage hardly reduce the bubble.
std::vector<int> microbatches_of(const ModelProfile& profile, const Layout& layout) {
  if (layout.pp == 1 || profile.rows % layout.dp != 0) return {1};
  constexpr int most = 8, most_of_all = 4096;  // `most_of_all` limits a simulation's time.
  return divisors_of(profile.rows / layout.dp, std::min(most * layout.pp, most_of_all / layout.pp));
}

std::vector<Layout> layouts_of(const ModelProfile& profile, int ranks) {
  std::vector<Layout> layouts;
  for (const int pp : divisors_of(ranks))
    for (const int dp : divisors_of(ranks / pp))
      for (const int cp : divisors_of(ranks / pp / dp))
        for (const bool fsdp : {false, true}) {
          if (fsdp && dp * cp == 1) continue;
          Layout layout{.dp = dp, .tp = ranks / pp / dp / cp, .pp = pp, .cp = cp, .fsdp = fsdp};
          for (const int count : microbatches_of(profile, layout)) {
            layout.microbatches = count;
            layouts.push_back(layout);
          }
        }
  return layouts;
}

}  // namespace

std::vector<PredictedLayout> predict_layouts(const ModelProfile& profile, const Machine& machine) {
  std::vector<PredictedLayout> all;
  for (const Layout& layout : layouts_of(profile, machine.ranks))
    all.push_back(predict(profile, machine, layout));
  std::stable_sort(all.begin(), all.end(), [](const auto& one, const auto& other) {
    if (one.impossible.empty() != other.impossible.empty()) return one.impossible.empty();
    return one.impossible.empty() && Predictor::is_better(one, other);
  });
  return all;
}

SimulatedPipeline simulate_layout(const ModelProfile& profile, const Machine& machine,
                                  const PredictedLayout& predicted) {
  return Predictor(profile, machine, predicted.layout).simulated(predicted.schedule.value());
}

}  // namespace lockstep::tools
