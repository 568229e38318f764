// The content of run.json (docs/run-json.md). Memory is bounded: of many steps, every second one is
// kept, then every fourth, and so on. Totals include all steps.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/toolkit/run_log/rank_report.h"
#include "lockstep/toolkit/run_log/scalar_means.h"

namespace lockstep::run_log {

// An all_reduce of n bytes among the measuring ranks takes about latency_s + n / bytes_per_s.
struct LinkSpeed {
  std::string name;
  double latency_s = 0;
  double bytes_per_s = 0;  // 0 if unknown.
};

struct RunFacts {
  double started = 0;  // Seconds since 1970.
  std::vector<int> host_of_rank = {0};
  std::vector<int> job_ranks = {0};  // By rank of the group: its rank in the job.
  std::map<std::string, std::string> options = {};
  std::vector<LinkSpeed> links = {};
  std::int64_t first_step = 0;
};

class RunRecord {
 public:
  // `most_rows`: over all ranks, about 80 bytes each; `most_values`: per scalar.
  explicit RunRecord(RunFacts facts, std::size_t most_rows = 100'000,
                     std::size_t most_values = 20'000);

  void add(const RankReport& report);
  void add(const ScalarMean& mean);
  void set_all_reduce_bytes(double per_step) { all_reduce_bytes_ = per_step; }

  // The whole file. `ended`: "running", "finished" or "failed"; `seconds`: length of the run.
  std::string json(std::string_view ended, double seconds) const;

 private:
  struct OfRank {
    std::int64_t steps = 0;  // All; `rows` has every every_-th.
    std::vector<StepRow> rows;
    StepTimes times;
  };
  struct Series {
    std::int64_t values_seen = 0;
    std::int64_t every = 1;
    std::vector<std::int64_t> steps;
    std::vector<double> values;
  };

  void thin_rows();
  std::string rows_json() const;

  const RunFacts facts_;
  const std::size_t most_rows_;
  const std::size_t most_values_;
  std::vector<OfRank> ranks_;
  std::int64_t every_ = 1;
  std::size_t rows_ = 0;  // Over all ranks.
  std::int64_t samples_ = 0;
  double all_reduce_bytes_ = 0;
  std::map<std::string, Series> scalars_;
};

}  // namespace lockstep::run_log
