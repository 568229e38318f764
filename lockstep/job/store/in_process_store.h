// A store within one process, for jobs of one rank and for ranks that are threads.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/job/store/store.h"

namespace lockstep {

class LOCKSTEP_API InProcessStore final : public Store {
 public:
  InProcessStore();
  ~InProcessStore() override;
  InProcessStore(const InProcessStore&) = delete;
  InProcessStore& operator=(const InProcessStore&) = delete;

  void set(std::string_view key, std::string_view value) override;
  std::optional<std::string> find(std::string_view key) override;
  std::string wait(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override;
  bool erase(std::string_view key) override;

 private:
  struct State;

  const std::unique_ptr<State> state_;
};

}  // namespace lockstep
