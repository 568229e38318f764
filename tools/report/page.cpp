// SPDX-License-Identifier: Apache-2.0
#include "tools/report/page.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/job/step_times.h"
#include "lockstep/job/straggler.h"
#include "tools/report/page_parts.h"
#include "tools/report/text.h"
#include "tools/report/what_if.h"

namespace lockstep::tools {
namespace {

using nlohmann::ordered_json;

ordered_json split_json(const Split& split) {
  ordered_json list = ordered_json::array();
  for (const StepPhase phase : phases_in_order) list.push_back(part(split, phase));
  return list;
}

ordered_json ranks_json(const RunFile& run, const RunFigures& figures) {
  ordered_json ranks = ordered_json::array();
  for (std::size_t i = 0; i < figures.times.size(); ++i) {
    const int rank = figures.times[i].rank;
    const auto place = static_cast<std::size_t>(rank);
    ranks.push_back({{"rank", rank},
                     {"host", place < run.host_of_rank.size() ? run.host_of_rank[place] : ""},
                     {"split", split_json(figures.splits[i])}});
  }
  return ranks;
}

ordered_json bins_json(const std::vector<StepBin>& bins) {
  ordered_json list = ordered_json::array();
  for (const StepBin& bin : bins)
    list.push_back({bin.step, bin.mean_ms, bin.least_ms, bin.most_ms});
  return list;
}

// More than a few hundred points are not visible.
ordered_json scalars_json(const RunFile& run) {
  constexpr std::size_t most = 400;
  ordered_json scalars = ordered_json::object();
  for (const auto& [name, scalar] : run.scalars) {
    ordered_json points = ordered_json::array();
    const std::size_t stride = scalar.steps.size() / most + 1;
    for (std::size_t i = 0; i < scalar.steps.size(); i += stride)
      points.push_back({scalar.steps[i], scalar.values[i]});
    scalars[name] = std::move(points);
  }
  return scalars;
}

ordered_json links_json(const RunFile& run) {
  ordered_json links = ordered_json::array();
  for (const RunLink& link : run.links)
    links.push_back(
        {{"name", link.name}, {"us", 1e6 * link.latency_s}, {"gb_per_s", link.bytes_per_s / 1e9}});
  return links;
}

ordered_json run_json(const Comparison& all, std::size_t i) {
  const RunFile& run = all.runs[i];
  const RunFigures& figures = all.figures[i];
  ordered_json about = ordered_json::array();
  for (const auto& [key, value] : run.about) about.push_back({key, value});
  for (const auto& [key, value] : run.options) about.push_back({key, value});
  return {{"name", run.name},
          {"ended", run.ended},
          {"ranks", run.ranks},
          {"hosts", run.hosts},
          {"steps", run.totals.front().times.steps},
          {"step_ms", figures.step_ms},
          {"median_ms", figures.median_ms},
          {"p99_ms", figures.p99_ms},
          {"rate", figures.rate},
          {"speed_up", all.speed_up(i)},
          {"ratio", all.ranks_ratio(i)},
          {"efficiency", all.efficiency(i)},
          {"split", split_json(figures.mean)},
          {"by_rank", ranks_json(run, figures)},
          {"straggler", figures.straggler ? describe(*figures.straggler) : ""},
          {"bins", bins_json(figures.bins)},
          {"scalars", scalars_json(run)},
          {"links", links_json(run)},
          {"about", std::move(about)}};
}

ordered_json answers_json(const std::vector<WhatIf>& answers) {
  ordered_json list = ordered_json::array();
  for (const WhatIf& each : answers)
    list.push_back({{"question", each.question},
                    {"gain", each.gain},
                    {"step_ms", each.step_ms},
                    {"assumption", each.assumption}});
  return list;
}

ordered_json data_of(const Comparison& all, const std::vector<int>& ranks) {
  ordered_json data;
  for (const StepPhase phase : phases_in_order) data["phases"].push_back(name(phase));
  for (std::size_t i = 0; i < all.runs.size(); ++i) data["runs"].push_back(run_json(all, i));
  data["rate_unit"] = all.is_rate_known ? "samples/s" : "steps of ranks/s";
  data["serial_part"] = all.serial_part() ? ordered_json(*all.serial_part()) : ordered_json();
  data["changes"] = answers_json(changes(all.runs[all.largest()], all.figures[all.largest()]));
  data["sizes"] = answers_json(other_sizes(all, ranks));
  return data;
}

// Replaces the marks in order: a text that contains a mark stays unchanged.
std::string filled(
    std::string_view page,
    std::initializer_list<std::pair<std::string_view, std::string_view>> marks_and_texts) {
  std::string whole;
  for (const auto& [mark, text] : marks_and_texts) {
    const auto place = page.find(mark);
    check(place != page.npos, "the page has a mark for each of its parts");
    whole.append(page.substr(0, place)).append(text);
    page.remove_prefix(place + mark.size());
  }
  return whole.append(page);
}

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char character : text) {
    if (character == '&')
      safe += "&amp;";
    else if (character == '<')
      safe += "&lt;";
    else
      safe += character;
  }
  return safe;
}

// Escapes "</script>", which would end a script.
std::string script_text(const ordered_json& data) {
  std::string safe;
  for (const char character : data.dump(-1, ' ', true, ordered_json::error_handler_t::replace)) {
    if (character == '<')
      safe += "\\u003c";
    else
      safe += character;
  }
  return safe;
}

}  // namespace

std::string report_page(const Comparison& all, const std::vector<int>& ranks) {
  return filled(page_html, {{"/*STYLE*/", page_css},
                            {"<!--TEXT-->", escaped(report_text(all, ranks))},
                            {"/*DATA*/", script_text(data_of(all, ranks))},
                            {"/*CHARTS*/", page_charts},
                            {"/*SCRIPT*/", page_js}});
}

}  // namespace lockstep::tools
