// The groups that a rank's connections serve.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/tcp/connection.h"
#include "lockstep/comm/tcp/connections.h"
#include "lockstep/comm/tcp/stream.h"

namespace lockstep::comm {

// A group's unread data and its access to connections. Made by ChannelTable::open() or,
// before it, by a frame for the group.
//
// Thread safety: as Channels; only the connection thread calls take() and, until fail(), notify().
class GroupChannels final : public Channels {
 public:
  // `request_notify` makes the connection thread call notify().
  GroupChannels(std::uint64_t id, std::function<void()> request_notify);

  // `connections` has one entry for each rank of the group; null for ranks of this host. Errors:
  // misuse when it is already open, also under another name of equal hash.
  void open(const std::string& name, const std::vector<int>& world_ranks,
            const std::vector<std::shared_ptr<Connection>>& connections);

  // Later data is dropped, and no callback is called.
  void close();

  // After the connection thread failed: ends all waits, and reports `error` as an abort.
  void fail(const Error& error);
  std::uint64_t id() const { return id_; }

  // Errors: corrupt.
  void take(int world_rank, const std::shared_ptr<Connection>& connection, const Frame& frame);

  void notify(bool of_messages);

  void say(int peer, std::string_view entry) override;
  std::optional<std::string> hear(int peer, Deadline deadline,
                                  const std::function<void()>& watch) override;
  void leave() override;
  bool has_left(int peer) const override;
  void abort(const AbortReason& why) override;
  void on_abort(std::function<void(const AbortReason&)> act) override;
  void ask_who_is_absent(const std::vector<int>& peers) override;
  void on_question(std::function<void()> act) override;
  PipeWriter& to(int peer) override;
  PipeReader* from(int peer) override;
  void on_message(std::function<void()> act) override;

 private:
  struct Inbox {
    Inbox(const std::shared_ptr<Connection>& its_connection, std::uint64_t group);

    const std::shared_ptr<Connection> connection;
    std::deque<std::string> entries = {};
    std::atomic<bool> left{false};
    std::string begun = {};   // An incomplete entry.
    std::size_t unheard = 0;  // Bytes of `entries` and `begun`, plus a cost per frame.
    OutStream out;
    InStream in;
  };

  Inbox& inbox_of(int world_rank, const std::shared_ptr<Connection>& connection);
  Inbox& inbox(int peer) const;
  void take_entry(Inbox& inbox, const Frame& frame);

  const std::uint64_t id_;
  const std::function<void()> request_notify_;

  mutable std::mutex mutex_;  // Guards the members below, up to the next mutex.
  std::condition_variable heard_;
  std::string name_;  // Empty before open().
  bool closed_ = false;
  std::map<int, std::unique_ptr<Inbox>> inboxes_;  // By rank of the job.
  std::vector<Inbox*> by_rank_;                    // By rank of the group, until close().
  std::optional<AbortReason> abort_reason_;        // The first one, from a remote rank or fail().
  bool asked_ = false;  // A remote rank asked which ranks are absent here.
  std::optional<Error> failed_;
  std::atomic<bool> aborted_{false};  // By this rank.

  std::mutex notify_mutex_;  // Guards the members below; held during callbacks.
  std::function<void(const AbortReason&)> on_abort_;
  std::function<void()> on_question_;
  std::function<void()> on_message_;
  bool reported_abort_ = false;
};

// By group_id(): open groups, and unopened ones with frames.
//
// Thread safety: any thread. Blocking: never.
class ChannelTable {
 public:
  // `wake` makes the connection thread call notify().
  explicit ChannelTable(std::function<void()> wake) : wake_(std::move(wake)) {}

  // As GroupChannels::open(). Errors: misuse for a name that was opened before; that of fail().
  std::shared_ptr<GroupChannels> open(const std::string& name, const std::vector<int>& world_ranks,
                                      const std::vector<std::shared_ptr<Connection>>& connections);
  void close(GroupChannels& group);

  // The group of a frame; null if it was closed. Errors: corrupt when frames arrive for too many
  // unopened groups.
  std::shared_ptr<GroupChannels> receiver(std::uint64_t id);

  // notify() notifies the groups that requested it; after notify_all_soon(), all.
  void notify_all_soon();
  bool has_to_notify() const;
  void notify();

  void fail(const Error& error);

 private:
  std::shared_ptr<GroupChannels> group(std::uint64_t id);
  bool was_opened(std::uint64_t id) const;

  const std::function<void()> wake_;

  mutable std::mutex mutex_;                                        // Guards the rest.
  std::map<std::uint64_t, std::shared_ptr<GroupChannels>> groups_;  // Until they are closed.
  std::vector<std::uint64_t> ever_opened_;  // Sorted; data for a closed one is dropped.
  std::size_t unopened_ = 0;                // Groups with data but no open() yet.
  std::vector<std::uint64_t> to_notify_;
  std::optional<Error> failed_;
};

}  // namespace lockstep::comm
