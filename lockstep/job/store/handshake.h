// Two processes prove to each other that they have the same job and its token. Frozen:
// docs/protocol.md. No I/O and no clock; the caller limits the time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/job/store/tcp_store.h"

namespace lockstep {

constexpr std::size_t nonce_bytes = 32;
constexpr std::size_t challenge_bytes = 48;
constexpr std::size_t hello_bytes = 208;
constexpr std::size_t verdict_bytes = 256;
constexpr std::size_t max_job_id_bytes = 123;

enum class Channel : std::uint32_t {
  store = 0,        // Ranks to a TcpStoreServer.
  agents = 1,       // Launchers to their coordinator, with the default numbers of JobMember.
  connections = 6,  // Ranks on different hosts to each other. 2 to 5: earlier versions.
};

// Random bytes from OpenSSL.
LOCKSTEP_API std::string make_nonce();

// 64 hexadecimal digits that distinguish long or secret texts.
LOCKSTEP_API std::string sha256_hex(std::string_view bytes);

// Errors: misuse for an empty or too long job id, a negative number, and a world size of 0.
LOCKSTEP_API void require_member(const JobMember& member);

enum class Verdict : std::uint8_t {
  refused = 0,  // Not authenticated: no reason is sent.
  accepted = 1,
  other_job = 2,
  other_world_size = 3,
  rank_out_of_range = 4,
  other_attempt = 5,
  duplicate = 6,
  other_channel = 7,
};

class LOCKSTEP_API ServerHandshake {
 public:
  // `here` is this server; its rank is ignored.
  ServerHandshake(const JobMember& here, const std::optional<JobToken>& token,
                  const std::string& nonce, Channel channel = Channel::store);

  const std::string& challenge() const { return challenge_; }

  struct Answer {
    Verdict verdict = Verdict::refused;
    std::string frame;  // Send it in any case.
    JobMember member;   // The peer; verified unless refused.
  };
  // The address of the rank's earlier authenticated connection; empty without one.
  using HolderOf = std::function<std::optional<std::string>(const JobMember& member)>;

  // Calls `holder_of` only if the rank is otherwise accepted. A peer's bytes never make it throw.
  Answer answer(std::string_view hello, const HolderOf& holder_of) const;

 private:
  std::string sealed(std::string_view hello, const Answer& answer, std::string_view holder) const;

  const JobMember here_;
  const std::optional<JobToken> token_;
  const std::string challenge_;
  const Channel channel_;
};

class LOCKSTEP_API ClientHandshake {
 public:
  ClientHandshake(const JobMember& member, const std::optional<JobToken>& token,
                  const std::string& nonce, Channel channel = Channel::store);

  // Errors: corrupt when `challenge` is not a challenge.
  std::string hello(std::string_view challenge);

  // Returns when the server has proved the token and accepted this process. Errors: misuse when it
  // refused, with both ends' values if it sent them; corrupt when it did not prove the token.
  void confirm(std::string_view verdict) const;

 private:
  const JobMember member_;
  const std::optional<JobToken> token_;
  const std::string nonce_;
  const Channel channel_;
  std::string said_;
};

}  // namespace lockstep
