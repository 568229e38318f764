// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/timeline/merge_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/output_file.h"
#include "lockstep/base/text.h"
#include "lockstep/base/text_file.h"
#include "lockstep/job/timeline/rank_timeline.h"
#include "lockstep/job/timeline_recorder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Larger than any rank: Perfetto takes a track with its process's number for the main thread.
constexpr int phases_track = 1'000'000;
constexpr int first_collectives_track = phases_track + 1;
constexpr int first_operators_track = 2 * phases_track;
constexpr std::size_t most_pending = 1 << 20;  // Bytes.

std::string quoted(const std::string& text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

class TraceFile {
 public:
  explicit TraceFile(const fs::path& path) : file_(path, 0) { text_ = "{\"traceEvents\":[\n"; }

  void add(std::string_view event) {
    if (!is_first_) text_ += ",\n";
    is_first_ = false;
    text_ += event;
    if (text_.size() >= most_pending) write();
  }

  void finish(const std::string& facts) {
    text_ += "\n],\"displayTimeUnit\":\"ms\",\"otherData\":" + facts + "}\n";
    write();
    file_.commit_unsynced();
  }

 private:
  void write() {
    file_.write(std::as_bytes(std::span(text_)));
    text_.clear();
  }

  AtomicFile file_;
  std::string text_;
  bool is_first_ = true;
};

// By thread; thread 0 runs the training loop.
using Tracks = std::map<std::uint32_t, int>;

struct Interval {
  std::int64_t begin = std::numeric_limits<std::int64_t>::max();
  std::int64_t end = std::numeric_limits<std::int64_t>::min();
};

// Threads share a track if one ends before the other begins, as for asynchronous checkpoints.
Tracks tracks_of(const std::map<std::uint32_t, Interval>& threads) {
  std::vector<std::pair<std::uint32_t, Interval>> in_order(threads.begin(), threads.end());
  std::ranges::sort(in_order, {}, [](const auto& one) { return one.second.begin; });
  Tracks tracks;
  std::vector<std::int64_t> ends;
  for (const auto& [thread, when] : in_order) {
    if (thread == 0) {
      tracks[thread] = first_collectives_track;
      continue;
    }
    auto free = std::ranges::find_if(ends, [&](std::int64_t end) { return end <= when.begin; });
    if (free == ends.end()) free = ends.insert(free, 0);
    *free = when.end;
    tracks[thread] = first_collectives_track + 1 + static_cast<int>(free - ends.begin());
  }
  return tracks;
}

struct FoundRank {
  RankTimeline spans;
  fs::path file;

  fs::path operators() const {
    return file.parent_path() / TimelineRecorder::operators_name(spans.attempt, spans.rank);
  }
};

using CollectiveKey = std::tuple<int, int, std::string_view, std::uint64_t>;

class Merge {
 public:
  Merge(std::vector<FoundRank> ranks, TimelineSummary summary, const fs::path& file)
      : ranks_(std::move(ranks)), file_(file), summary_(std::move(summary)) {
    std::map<int, std::map<std::uint32_t, Interval>> threads;
    for (const auto& [rank, from] : ranks_) {
      for (const auto& one : rank.phases) start_ = std::min(start_, one.begin);
      for (const auto& one : rank.collectives) {
        start_ = std::min(start_, one.begin);
        Interval& when = threads[rank.rank][one.thread];
        when = {std::min(when.begin, one.begin), std::max(when.end, one.end)};
      }
    }
    for (const auto& [rank, of_rank] : threads) tracks_[rank] = tracks_of(of_rank);
  }

  TimelineSummary run() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const RankTimeline& rank = ranks_[i].spans;
      const bool is_last = i + 1 == ranks_.size() || ranks_[i + 1].spans.rank != rank.rank;
      if (is_last) add_names(rank);  // A later attempt may be on another host.
      summary_.ranks += is_last ? 1 : 0;
      add_spans(rank);
    }
    for (const FoundRank& each : ranks_) {
      add_arrows(each.spans);
      add_operators(each.spans, each.operators());
    }
    file_.finish(facts());
    return summary_;
  }

 private:
  double at(std::int64_t nanoseconds) const {
    return static_cast<double>(nanoseconds - start_) / 1000;
  }

  void name_track(const RankTimeline& rank, int track, const std::string& name) {
    file_.add(
        fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})",
                    rank.rank, track, quoted(name)));
  }

  void add_names(const RankTimeline& rank) {
    file_.add(fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}})",
                          rank.rank, quoted(fmt::format("rank {} on {}", rank.rank, rank.host))));
    file_.add(fmt::format(
        R"({{"ph":"M","name":"process_sort_index","pid":{0},"args":{{"sort_index":{0}}}}})",
        rank.rank));
    name_track(rank, phases_track, "training loop");
    std::map<int, const char*> names;
    for (const auto& [thread, track] : tracks_[rank.rank])
      names[track] = thread == 0 ? "collectives" : "collectives of other threads";
    for (const auto& [track, name] : names) name_track(rank, track, name);
  }

  void add_spans(const RankTimeline& rank) {
    const Tracks& tracks = tracks_[rank.rank];
    for (const auto& one : rank.phases)
      file_.add(fmt::format(
          R"({{"ph":"X","cat":"phase","name":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f}}})",
          name(one.phase), rank.rank, phases_track, at(one.begin), at(one.end) - at(one.begin)));
    for (const auto& one : rank.collectives) add_collective(rank, one, tracks.at(one.thread));
    summary_.phases += rank.phases.size();
    summary_.collectives += rank.collectives.size();
    summary_.left_out += rank.phases_left_out + rank.collectives_left_out;
  }

  void add_collective(const RankTimeline& rank, const RankTimeline::Collective& one, int track) {
    places_[{rank.attempt, rank.rank, one.group, one.sequence}] = {one.begin, track};
    std::string title(name(one.operation));
    std::string error;
    if (one.fault) {
      ++summary_.failed;
      title += fmt::format(": {}", name(*one.fault));
      error = fmt::format(R"(,"error":"{}")", name(*one.fault));
    }
    file_.add(fmt::format(
        R"({{"ph":"X","cat":"collective","name":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},)"
        R"("args":{{"group":{},"sequence":{},"bytes":{},"waited_us":{:.3f},"last":{}{}}}}})",
        title, rank.rank, track, at(one.begin), at(one.end) - at(one.begin), quoted(one.group),
        one.sequence, one.bytes, one.last < 0 ? 0 : at(one.waited_until) - at(one.begin), one.last,
        error));
  }

  // From the last rank's begin to the end of the wait for it: both ends lie in their spans.
  void add_arrows(const RankTimeline& rank) {
    for (const auto& one : rank.collectives) {
      if (one.last < 0 || one.last == rank.rank) continue;
      const auto from = places_.find({rank.attempt, one.last, one.group, one.sequence});
      if (from == places_.end()) continue;
      const auto [came, track] = from->second;
      const int own_track = places_.at({rank.attempt, rank.rank, one.group, one.sequence}).track;
      const std::int64_t arrives = std::clamp(std::max(came, one.waited_until), one.begin, one.end);
      add_end_of_arrow("s", one.last, track, came);
      add_end_of_arrow("f", rank.rank, own_track, arrives);
      ++summary_.arrows;
    }
  }

  void add_end_of_arrow(const char* which, int rank, int track, std::int64_t time) {
    file_.add(fmt::format(R"({{"ph":"{}","cat":"wait","name":"waited for","id":{},"bp":"e",)"
                          R"("pid":{},"tid":{},"ts":{:.3f}}})",
                          which, summary_.arrows + 1, rank, track, at(time)));
  }

  void add_operators(const RankTimeline& rank, const fs::path& file) {
    if (!fs::exists(file)) return;
    try {
      const json trace = json::parse(read_file(file.string()));
      const std::int64_t base = trace.value("baseTimeNanoseconds", std::int64_t{0});
      std::map<json, int> tracks;
      int& next = next_operators_track_.try_emplace(rank.rank, first_operators_track).first->second;
      for (const json& event : trace.at("traceEvents")) {
        if (event.value("ph", "") != "X" || !event.contains("ts")) continue;
        if (event.value("cat", "") == "Trace") continue;  // The profiler's own span.
        const auto track = tracks.emplace(event.at("tid"), next);
        if (track.second) name_track(rank, next++, "LibTorch's operators");
        add_operator(rank, event, base, track.first->second);
      }
    } catch (const json::exception&) {
      summary_.unreadable.push_back(file.string() + ": it is damaged");
    }
  }

  // Times are microseconds after `base`, a wall clock time.
  void add_operator(const RankTimeline& rank, const json& event, std::int64_t base, int track) {
    const auto after_base = static_cast<std::int64_t>(event.at("ts").get<double>() * 1000);
    json merged{{"ph", "X"},
                {"cat", "operator"},
                {"name", event.at("name")},
                {"pid", rank.rank},
                {"tid", track},
                {"ts", at(base + after_base - rank.wall_minus_this_ns)},
                {"dur", event.value("dur", 0.0)}};
    file_.add(merged.dump(-1, ' ', false, json::error_handler_t::replace));
    ++summary_.operators;
  }

  std::string facts() const {
    json left_out = json::array();
    for (const auto& [rank, from] : ranks_)
      if (rank.phases_left_out + rank.collectives_left_out > 0)
        left_out.push_back({{"rank", rank.rank},
                            {"attempt", rank.attempt},
                            {"phases", rank.phases_left_out},
                            {"collectives", rank.collectives_left_out}});
    json clock_errors = json::array();
    for (const auto& [rank, from] : ranks_)
      if (rank.clock_error_ns > 0)
        clock_errors.push_back({{"rank", rank.rank},
                                {"attempt", rank.attempt},
                                {"comparisons", rank.clock_comparisons},
                                {"microseconds", static_cast<double>(rank.clock_error_ns) / 1000}});
    const json facts{{"ranks", summary_.ranks},
                     {"clock_errors", clock_errors},
                     {"left_out", left_out},
                     {"unreadable", summary_.unreadable},
                     {"other_jobs", summary_.other_jobs}};
    return facts.dump(-1, ' ', false, json::error_handler_t::replace);
  }

  struct Place {
    std::int64_t begin = 0;
    int track = 0;
  };

  const std::vector<FoundRank> ranks_;
  std::map<int, Tracks> tracks_;
  std::map<int, int> next_operators_track_;
  TraceFile file_;
  std::int64_t start_ = std::numeric_limits<std::int64_t>::max();
  std::map<CollectiveKey, Place> places_;  // Group names point into `ranks_`.
  TimelineSummary summary_;
};

std::vector<fs::path> span_files_in(const std::vector<fs::path>& folders) {
  std::vector<fs::path> files;
  for (const fs::path& folder : folders) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error))
      if (entry.path().extension() == ".spans") files.push_back(entry.path());
    if (error) throw_errno("listing folder " + folder.string(), error.value());
  }
  return files;
}

std::vector<FoundRank> read_ranks(const std::vector<fs::path>& files,
                                  std::vector<std::string>& unreadable) {
  std::vector<FoundRank> ranks;
  for (const fs::path& file : files) {
    try {
      ranks.push_back({read_rank_timeline(file), file});
    } catch (const Error& error) {
      if (error.fault() != Fault::corrupt) throw;
      unreadable.push_back(bare_text(error));
    }
  }
  return ranks;
}

void keep_last_job(std::vector<FoundRank>& ranks, std::vector<std::string>& other_jobs) {
  const auto began = [](const FoundRank& each) { return each.spans.began_wall_ns; };
  const std::uint64_t last = std::ranges::max_element(ranks, {}, began)->spans.job;
  std::erase_if(ranks, [&](const FoundRank& each) {
    if (each.spans.job == last) return false;
    other_jobs.push_back(each.file.string());
    return true;
  });
}

std::string counted(std::uint64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

TimelineSummary merge_timeline(const std::vector<fs::path>& folders, const fs::path& file) {
  TimelineSummary found;
  std::vector<fs::path> files = span_files_in(folders);
  require(!files.empty(), "the folders have no spans of ranks");
  std::ranges::sort(files);
  std::vector<FoundRank> ranks = read_ranks(files, found.unreadable);
  if (ranks.empty())
    throw Error(Fault::corrupt, "no file of spans can be read: " + found.unreadable.front());
  keep_last_job(ranks, found.other_jobs);
  std::ranges::sort(
      ranks, {}, [](const FoundRank& one) { return std::pair(one.spans.rank, one.spans.attempt); });
  return Merge(std::move(ranks), std::move(found), file).run();
}

std::string describe(const TimelineSummary& summary) {
  std::string text =
      fmt::format("{}, {}, {}, {}", counted(static_cast<std::uint64_t>(summary.ranks), "rank"),
                  counted(summary.phases, "phase"), counted(summary.collectives, "collective"),
                  counted(summary.arrows, "arrow"));
  if (summary.operators > 0) text += ", " + counted(summary.operators, "operator");
  if (summary.failed > 0) text += "; " + counted(summary.failed, "collective") + " failed";
  if (summary.left_out > 0)
    text += fmt::format("; the first {} spans are left out", summary.left_out);
  if (!summary.unreadable.empty())
    text += "; " + counted(summary.unreadable.size(), "file") + " could not be read";
  if (!summary.other_jobs.empty())
    text += "; " + counted(summary.other_jobs.size(), "file") + " of other jobs left out";
  return text;
}

}  // namespace lockstep
