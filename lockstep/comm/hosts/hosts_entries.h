// How ranks of several hosts enter a collective: each host first sends its ranks' calls to all
// other hosts.
//
// Ranks of a host exchange calls in shared memory. docs/algorithms.md describes the exchange
// between hosts.
//
// Thread safety: one thread only. Blocking, Errors: as Backend::enter().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/time.h"
#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/hosts/hosts_group.h"

namespace lockstep::comm {

class HostsEntries {
 public:
  // `group` must outlive it.
  explicit HostsEntries(const HostsGroup& group);

  void enter(const Collective& collective);
  std::optional<int> last_to_enter() const { return last_; }
  const Signature& entered(int rank) const { return said_[static_cast<std::size_t>(rank)]; }
  std::vector<std::string> labels(const Collective& collective);

  // `mine` is equal on all ranks of a host. Returns each host's, by host.
  std::vector<std::string> exchange(const std::string& mine, const Collective& collective);

 private:
  struct Patience {
    Deadline deadline;
    bool asks = true;  // At the deadline, asks the host which ranks are absent.
  };

  void enter(const Collective& collective, Patience patience);
  std::optional<int> unpack(int host, std::string_view text);
  std::vector<std::string> exchange(const std::string& mine, const Collective& collective,
                                    Patience patience);
  std::string hear(int host, const Collective& collective, Patience patience);
  std::string hear_from(int peer, const Collective& collective, Patience patience);
  void hear_all_pairs(const Collective& collective, Deadline deadline);
  void await_all(const Collective& collective);
  std::string describe_absent(const Collective& collective, int host) const;
  void ask_who_is_absent(const Collective& collective, int host);
  void share_on_host(std::vector<std::string>& said, const Collective& collective);

  const HostsGroup& group_;
  const HostMap& map_;
  std::vector<Signature> said_;  // By rank, of the last entry.
  std::optional<int> last_;
  int slowest_host_ = 0;  // Waited for longest.
};

}  // namespace lockstep::comm
