// How two processes of one job prove to each other, over a socket to which anybody may connect,
// that both have the job's token, and agree on the job. Frozen: docs/protocol.md.
//
// Three frames of fixed length: a challenge, a hello, a verdict. Each end proves the token by an
// HMAC over all that was said before, under a key of its own direction. No I/O and no clock here;
// the caller limits the time.
//
// What differs beside the token is told only to those who have proved the token.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/job/store/job_member.h"
#include "lockstep/job/store/job_token.h"

namespace lockstep {

constexpr std::size_t nonce_bytes = 32;
constexpr std::size_t challenge_bytes = 48;
constexpr std::size_t hello_bytes = 208;
constexpr std::size_t verdict_bytes = 256;
constexpr std::size_t max_job_id_bytes = 123;

// Which of a job's services a connection is for.
enum class Channel : std::uint32_t {
  store = 0,   // Ranks to a TcpStoreServer.
  agents = 1,  // Launchers to the one that coordinates them. A JobMember's numbers do not count.
  lines = 2,   // Ranks of different hosts to each other.
};

// From OpenSSL's generator.
LOCKSTEP_API std::string make_nonce();

// Errors: misuse for a job id or numbers that no frame can carry.
LOCKSTEP_API void require_member(const JobMember& member);

enum class Verdict : std::uint8_t {
  refused = 0,  // Not authenticated: nothing else is said.
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
  // `here` is who this server is: its rank does not count.
  ServerHandshake(const JobMember& here, const std::optional<JobToken>& token,
                  const std::string& nonce, Channel channel = Channel::store);

  const std::string& challenge() const { return challenge_; }

  struct Answer {
    Verdict verdict = Verdict::refused;
    std::string frame;  // To be sent in any case.
    JobMember member;   // Who it is; known to be true unless refused.
  };
  // Where the connection of an authenticated rank that is here already comes from; empty when it
  // is not.
  using HolderOf = std::function<std::optional<std::string>(const JobMember& member)>;

  // `holder_of` is asked only about a rank that is otherwise right. Throws for nothing that a peer
  // can send.
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

  // Errors: corrupt when `challenge` is none.
  std::string hello(std::string_view challenge);

  // Returns when the server has the token too and took us. Errors: misuse when it refused us, with
  // both ends' values where it said them; corrupt when it could not prove that it has the token.
  void confirm(std::string_view verdict) const;

 private:
  const JobMember member_;
  const std::optional<JobToken> token_;
  const std::string nonce_;
  const Channel channel_;
  std::string said_;  // The challenge and our hello.
};

}  // namespace lockstep
