// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/pipeline_order.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/text_file.h"
#include "lockstep/parallel/pipeline/action_places.h"

namespace lockstep {
namespace {

using parallel::as_index;

constexpr std::array schedule_names{
    std::pair{PipelineSchedule::gpipe, std::string_view("gpipe")},
    std::pair{PipelineSchedule::one_f_one_b, std::string_view("1f1b")},
    std::pair{PipelineSchedule::interleaved, std::string_view("interleaved")},
    std::pair{PipelineSchedule::looped_bfs, std::string_view("looped_bfs")},
    std::pair{PipelineSchedule::zero_bubble, std::string_view("zb1p")},
    std::pair{PipelineSchedule::zbv, std::string_view("zbv")},
};

// From the front of `text`; empty if there is none.
std::optional<int> take_number(std::string_view& text) {
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

std::optional<PipelineAction> action_in(std::string_view text) {
  const auto stage = take_number(text);
  if (!stage || text.empty()) return std::nullopt;
  const char kind = text.front();
  text.remove_prefix(1);
  const auto microbatch = take_number(text);
  if (!microbatch || !text.empty() || std::string_view("FBIW").find(kind) == std::string_view::npos)
    return std::nullopt;
  return PipelineAction{*stage, static_cast<PipelineActionKind>(kind), *microbatch};
}

// Without surrounding blanks and quotes. Actions contain no quotes.
std::string_view bare_field(std::string_view field) {
  const auto first = field.find_first_not_of(" \t\r");
  if (first == field.npos) return {};
  field = field.substr(first, field.find_last_not_of(" \t\r") - first + 1);
  if (field.size() >= 2 && field.front() == '"' && field.back() == '"')
    field = field.substr(1, field.size() - 2);
  return field;
}

// `place` is "FILE:LINE".
std::vector<PipelineAction> actions_in(std::string_view line, const std::string& place) {
  std::vector<PipelineAction> actions;
  while (true) {
    const auto comma = line.find(',');
    const std::string_view field = bare_field(line.substr(0, comma));
    if (!field.empty()) {
      const auto action = action_in(field);
      require(action.has_value(), [&] {
        return place + ": '" + clean_text(field, 60) +
               "' is not an action, such as 2F5: stage, one of F, B, I and W, microbatch";
      });
      actions.push_back(*action);
    }
    if (comma == line.npos) return actions;
    line.remove_prefix(comma + 1);
  }
}

void infer_shape(PipelineOrder& order, const std::string& file) {
  std::size_t most = 0;
  for (const auto& actions : order.actions) most += actions.size();
  for (int rank = 0; rank < order.ranks(); ++rank)
    for (const PipelineAction& action : order.actions[as_index(rank)]) {
      // Limits memory in proportion to the file.
      require(as_index(std::max(action.stage, action.microbatch)) < most, [&] {
        return file + ": " + to_string(action) + " on rank " + std::to_string(rank) +
               " has a number above the count of all actions, " + std::to_string(most);
      });
      order.microbatches = std::max(order.microbatches, action.microbatch + 1);
      if (action.stage >= order.stages())
        order.rank_of_stage.resize(as_index(action.stage) + 1, -1);
      int& owner = order.rank_of_stage[as_index(action.stage)];
      if (owner < 0) owner = rank;
    }
}

class Complaints {
 public:
  void add(const std::string& text) {
    if (++count_ <= most) text_ += "\n  " + text;
  }
  void add_without_text(std::size_t more) { count_ += more; }
  bool is_full() const { return count_ >= most; }

  void throw_if_any() const {
    if (count_ == 0) return;
    throw Error(Fault::misuse,
                "the pipeline's order has " + std::to_string(count_) +
                    (count_ == 1 ? " fault:" : " faults:") + text_ +
                    (count_ > most ? "\n  and " + std::to_string(count_ - most) + " more" : ""));
  }

 private:
  static constexpr std::size_t most = 10;
  std::size_t count_ = 0;
  std::string text_;
};

void check_shape(const PipelineOrder& order, Complaints& complaints) {
  if (order.microbatches < 1)
    complaints.add(std::to_string(order.microbatches) + " microbatches: at least 1 is needed");
  if (order.stages() == 0) complaints.add("there is no stage");
  std::vector<bool> has_stage(order.actions.size());
  for (int stage = 0; stage < order.stages(); ++stage) {
    const int rank = order.rank_of_stage[as_index(stage)];
    if (rank < 0 || rank >= order.ranks())
      complaints.add("stage " + std::to_string(stage) + " is on rank " + std::to_string(rank) +
                     " of " + std::to_string(order.ranks()));
    else
      has_stage[as_index(rank)] = true;
  }
  for (int rank = 0; rank < order.ranks(); ++rank)
    if (!has_stage[as_index(rank)])
      complaints.add("rank " + std::to_string(rank) + " has no stage");
}

struct Done {
  bool forward = false;
  bool backward = false;
  bool input = false;
  bool weight = false;

  bool& of(PipelineActionKind kind) {
    switch (kind) {
      case PipelineActionKind::forward:
        return forward;
      case PipelineActionKind::backward:
        return backward;
      case PipelineActionKind::backward_input:
        return input;
      case PipelineActionKind::backward_weight:
        break;
    }
    return weight;
  }
};
using DoneBefore = std::map<std::pair<int, int>, Done>;  // By stage and microbatch.

std::string complaint_about(const PipelineAction& action, Done& done) {
  const auto same = [&](PipelineActionKind kind) {
    return to_string(PipelineAction{action.stage, kind, action.microbatch});
  };
  using enum PipelineActionKind;
  if (done.of(action.kind)) return " comes again";
  if (action.kind == forward) return "";
  if (action.kind == backward && (done.input || done.weight))
    return " comes beside " + same(done.input ? backward_input : backward_weight) +
           ", which is part of it";
  if (action.kind != backward && done.backward)
    return " comes beside " + same(backward) + ", of which it is a part";
  if (action.kind == backward_weight)
    return done.input ? "" : " comes before " + same(backward_input);
  return done.forward ? "" : " comes before " + same(forward);
}

void check_rank(const PipelineOrder& order, int rank, DoneBefore& done, Complaints& complaints) {
  for (const PipelineAction& action : order.actions[as_index(rank)]) {
    const std::string what = "rank " + std::to_string(rank) + ": " + to_string(action);
    const auto& [stage, kind, microbatch] = action;
    if (stage < 0 || stage >= order.stages()) {
      complaints.add(what + " is of none of the " + std::to_string(order.stages()) + " stages");
    } else if (microbatch < 0 || microbatch >= order.microbatches) {
      complaints.add(what + " is of none of the " + std::to_string(order.microbatches) +
                     " microbatches");
    } else if (order.rank_of_stage[as_index(stage)] != rank) {
      complaints.add(what + " is of a stage on rank " +
                     std::to_string(order.rank_of_stage[as_index(stage)]));
    } else {
      Done& before = done[{stage, microbatch}];
      const std::string complaint = complaint_about(action, before);
      if (!complaint.empty()) complaints.add(what + complaint);
      before.of(kind) = true;
    }
  }
}

void check_missing(const PipelineOrder& order, const DoneBefore& done, Complaints& complaints) {
  const auto miss = [&](int stage, int microbatch, PipelineActionKind kind) {
    complaints.add(to_string(PipelineAction{stage, kind, microbatch}) + " is missing");
  };
  using enum PipelineActionKind;
  for (const auto& [of, kinds] : done) {
    if (!kinds.forward) miss(of.first, of.second, forward);
    if (kinds.backward) continue;
    if (!kinds.input && !kinds.weight) miss(of.first, of.second, backward);
    if (kinds.input && !kinds.weight) miss(of.first, of.second, backward_weight);
    if (!kinds.input && kinds.weight) miss(of.first, of.second, backward_input);
  }
  std::size_t absent =
      as_index(order.stages()) * as_index(std::max(order.microbatches, 0)) - done.size();
  for (int stage = 0; stage < order.stages() && absent > 0; ++stage)
    for (int microbatch = 0; microbatch < order.microbatches && absent > 0; ++microbatch) {
      if (done.contains({stage, microbatch})) continue;
      if (complaints.is_full()) return complaints.add_without_text(absent);
      complaints.add(to_string(PipelineAction{stage, forward, microbatch}) + " and " +
                     to_string(PipelineAction{stage, backward, microbatch}) + " are missing");
      --absent;
    }
}

// A cycle of ranks whose next actions need each other's results.
void check_circle(const PipelineOrder& order, Complaints& complaints) {
  const parallel::ActionPlaces places(order);
  const std::vector<int> done = places.visit([](parallel::ActionPlace) {});
  const auto is_stuck = [&](int rank) {
    return as_index(done[as_index(rank)]) < order.actions[as_index(rank)].size();
  };
  int rank = 0;
  while (rank < order.ranks() && !is_stuck(rank)) ++rank;
  if (rank == order.ranks()) return;

  const auto next = [&](int of) {
    return order.actions[as_index(of)][as_index(done[as_index(of)])];
  };
  const auto awaited = [&](int of) { return places.needed_by(next(of)).value(); };
  std::vector<bool> seen(order.actions.size());
  for (; !seen[as_index(rank)]; rank = awaited(rank).rank) seen[as_index(rank)] = true;
  std::string text = "ranks wait for each other:";
  const int first = rank;
  do {
    const auto [other, index] = awaited(rank);
    text += (rank == first && text.back() == ':' ? " rank " : "; rank ") + std::to_string(rank) +
            " in " + to_string(next(rank)) + " for " +
            to_string(order.actions[as_index(other)][as_index(index)]) +
            (other == rank ? ", which it does later" : " of rank " + std::to_string(other));
    rank = other;
  } while (rank != first);
  complaints.add(text);
}

}  // namespace

PipelineSchedule parse_pipeline_schedule(std::string_view name) {
  std::string all;
  for (const auto& [schedule, known] : schedule_names) {
    if (known == name) return schedule;
    all += (all.empty() ? "" : ", ") + std::string(known);
  }
  throw Error(Fault::misuse, "there is no schedule '" + clean_text(name, 60) + "', but " + all);
}

std::string_view name_of(PipelineSchedule schedule) {
  for (const auto& [known, name] : schedule_names)
    if (known == schedule) return name;
  throw Error(Fault::misuse, "there is no such schedule");
}

PipelineAction parse_pipeline_action(std::string_view text) {
  const auto action = action_in(text);
  require(action.has_value(), [&] {
    return "'" + clean_text(text, 60) +
           "' is not an action, such as 2F5: stage, one of F, B, I and W, microbatch";
  });
  return *action;
}

std::string to_string(const PipelineAction& action) {
  return std::to_string(action.stage) + static_cast<char>(action.kind) +
         std::to_string(action.microbatch);
}

PipelineOrder read_pipeline_order(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw_errno(file);
  PipelineOrder order;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number)
    order.actions.push_back(actions_in(line, file + ":" + std::to_string(number)));
  if (in.bad()) throw_errno(file);
  while (!order.actions.empty() && order.actions.back().empty()) order.actions.pop_back();
  infer_shape(order, file);
  return order;
}

void write_pipeline_order(const PipelineOrder& order, const std::string& file) {
  std::string text;
  for (const auto& actions : order.actions) {
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (i > 0) text += ',';
      text += to_string(actions[i]);
    }
    text += '\n';  // Each line is a rank, also without actions.
  }
  write_file(file, text);
}

std::string to_string(const PipelineOrder& order) {
  std::string text;
  for (const auto& actions : order.actions) {
    for (const PipelineAction& action : actions) text += to_string(action) + ' ';
    if (actions.empty()) text += ' ';
    text.back() = '\n';
  }
  return text;
}

void check_pipeline_order(const PipelineOrder& order) {
  Complaints complaints;
  check_shape(order, complaints);
  complaints.throw_if_any();
  DoneBefore done;
  for (int rank = 0; rank < order.ranks(); ++rank) check_rank(order, rank, done, complaints);
  check_missing(order, done, complaints);
  complaints.throw_if_any();
  check_circle(order, complaints);
  complaints.throw_if_any();
}

}  // namespace lockstep
