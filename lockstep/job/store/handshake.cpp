// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/handshake.h"

#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <array>
#include <climits>
#include <cstddef>
#include <memory>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/job/store/store_service.h"

namespace lockstep {
namespace {

using job::in_quotes;

constexpr std::size_t mac_bytes = 32;
constexpr std::size_t job_id_field = max_job_id_bytes + 1;
constexpr std::size_t holder_field = 80;
constexpr std::string_view challenge_magic{"LOCKSTEP\x01\0\0\0\0\0\0\0", 16};
constexpr std::string_view hello_magic{"LSC\x01", 4};
constexpr std::string_view verdict_magic{"LSV\x01", 4};
constexpr std::string_view to_server = "lockstep1 client";
constexpr std::string_view to_client = "lockstep1 server";

// Public: separates jobs without a token, but stops no attacker.
constexpr std::string_view no_token = "lockstep: a job without a token";

using Key = std::array<unsigned char, 32>;

const unsigned char* octets(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

[[noreturn]] void throw_crypto(std::string_view what) {
  throw Error(Fault::system, fmt::format("OpenSSL cannot do {}", what));
}

// HKDF-SHA256. The salt is the job id: two jobs with one token have different keys.
Key derive(const std::optional<JobToken>& token, std::string_view job_id,
           std::string_view purpose) {
  const auto free_kdf = [](EVP_KDF* kdf) { EVP_KDF_free(kdf); };
  const auto free_context = [](EVP_KDF_CTX* context) { EVP_KDF_CTX_free(context); };
  const std::unique_ptr<EVP_KDF, decltype(free_kdf)> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  if (!kdf) throw_crypto("HKDF");
  const std::unique_ptr<EVP_KDF_CTX, decltype(free_context)> context(EVP_KDF_CTX_new(kdf.get()));
  const std::string_view secret = token ? token->text() : no_token;
  const auto part = [](const char* name, std::string_view text) {
    return OSSL_PARAM_construct_octet_string(name, const_cast<char*>(text.data()), text.size());
  };
  char digest[] = "SHA256";
  const std::array<OSSL_PARAM, 5> parameters{
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      part(OSSL_KDF_PARAM_KEY, secret), part(OSSL_KDF_PARAM_SALT, job_id),
      part(OSSL_KDF_PARAM_INFO, purpose), OSSL_PARAM_construct_end()};
  Key key{};
  if (!context || EVP_KDF_derive(context.get(), key.data(), key.size(), parameters.data()) != 1)
    throw_crypto("HKDF");
  return key;
}

std::string prove(const std::optional<JobToken>& token, std::string_view job_id,
                  std::string_view purpose, std::string_view transcript) {
  Key key = derive(token, job_id, purpose);
  std::array<unsigned char, mac_bytes> mac{};
  std::size_t length = 0;
  const bool done =
      EVP_Q_mac(nullptr, "HMAC", nullptr, "SHA256", nullptr, key.data(), key.size(),
                octets(transcript), transcript.size(), mac.data(), mac.size(), &length) != nullptr;
  OPENSSL_cleanse(key.data(), key.size());
  if (!done || length != mac_bytes) throw_crypto("HMAC");
  return std::string(reinterpret_cast<const char*>(mac.data()), mac_bytes);
}

bool is_proof(std::string_view given, const std::string& right) {
  return given.size() == mac_bytes && CRYPTO_memcmp(given.data(), right.data(), mac_bytes) == 0;
}

struct Hello {
  JobMember member;
  Channel channel = Channel::store;
};

Hello decode_hello(std::string_view frame) {
  ByteReader reader(frame);
  if (reader.raw(hello_magic.size()) != hello_magic) throw Error(Fault::corrupt, "not a hello");
  Hello hello;
  hello.member.job_id = reader.padded(job_id_field);
  hello.member.rank = static_cast<int>(reader.number<std::uint32_t>());
  hello.member.world_size = static_cast<int>(reader.number<std::uint32_t>());
  hello.member.attempt = static_cast<int>(reader.number<std::uint32_t>());
  hello.channel = static_cast<Channel>(reader.number<std::uint32_t>());
  reader.raw(nonce_bytes + mac_bytes);
  reader.end();
  require_member(hello.member);
  return hello;
}

Verdict compare(const JobMember& here, const JobMember& there) {
  if (there.job_id != here.job_id) return Verdict::other_job;
  if (there.world_size != here.world_size) return Verdict::other_world_size;
  if (there.rank >= here.world_size) return Verdict::rank_out_of_range;
  if (there.attempt != here.attempt) return Verdict::other_attempt;
  return Verdict::accepted;
}

std::string_view name_of(Channel channel) {
  if (channel == Channel::connections) return "rank";
  return channel == Channel::store ? "store" : "launcher";
}

std::string_view client_of(Channel channel) {
  return channel == Channel::agents ? "launcher" : "rank";
}

}  // namespace

std::string make_nonce() {
  std::array<unsigned char, nonce_bytes> nonce{};
  if (RAND_bytes(nonce.data(), nonce.size()) != 1) throw_crypto("random bytes");
  return std::string(reinterpret_cast<const char*>(nonce.data()), nonce.size());
}

void require_member(const JobMember& member) {
  require(!member.job_id.empty() && member.job_id.size() <= max_job_id_bytes,
          "a job id has 1 to 123 bytes");
  require(member.rank >= 0 && member.world_size > 0 && member.attempt >= 0,
          "rank and attempt are at least 0, world size at least 1");
}

ServerHandshake::ServerHandshake(const JobMember& here, const std::optional<JobToken>& token,
                                 const std::string& nonce, Channel channel)
    : here_(here),
      token_(token),
      challenge_(std::string(challenge_magic) + nonce),
      channel_(channel) {}

ServerHandshake::Answer ServerHandshake::answer(std::string_view hello,
                                                const HolderOf& holder_of) const {
  Answer answer;
  answer.frame =
      std::string(verdict_magic) + std::string(verdict_bytes - verdict_magic.size(), '\0');
  Hello said;
  try {
    said = decode_hello(hello);
  } catch (const Error&) {
    return answer;
  }
  // The peer's job id: a peer with the right token receives other differences.
  const std::size_t unproved = hello_bytes - mac_bytes;
  const std::string transcript = challenge_ + std::string(hello.substr(0, unproved));
  const std::string right = prove(token_, said.member.job_id, to_server, transcript);
  if (!is_proof(hello.substr(unproved), right)) return answer;

  answer.member = said.member;
  answer.verdict = said.channel == channel_ ? compare(here_, said.member) : Verdict::other_channel;
  std::optional<std::string> holder;
  if (answer.verdict == Verdict::accepted) holder = holder_of(said.member);
  if (holder) answer.verdict = Verdict::duplicate;
  answer.frame = sealed(hello, answer, holder.value_or(""));
  return answer;
}

std::string ServerHandshake::sealed(std::string_view hello, const Answer& answer,
                                    std::string_view holder) const {
  std::string frame = ByteWriter(verdict_bytes)
                          .raw(verdict_magic)
                          .number(static_cast<std::uint32_t>(answer.verdict))
                          .padded(here_.job_id, job_id_field)
                          .number(static_cast<std::uint32_t>(here_.world_size))
                          .number(static_cast<std::uint32_t>(here_.attempt))
                          .number(std::uint32_t{0})
                          .padded(holder.substr(0, holder_field - 1), holder_field)
                          .take();
  return frame +
         prove(token_, answer.member.job_id, to_client, challenge_ + std::string(hello) + frame);
}

ClientHandshake::ClientHandshake(const JobMember& member, const std::optional<JobToken>& token,
                                 const std::string& nonce, Channel channel)
    : member_(member), token_(token), nonce_(nonce), channel_(channel) {
  require_member(member_);
}

std::string ClientHandshake::hello(std::string_view challenge) {
  if (challenge.size() != challenge_bytes || !challenge.starts_with(challenge_magic))
    throw Error(Fault::corrupt, fmt::format("the listener is not a Lockstep {} of this version",
                                            name_of(channel_)));
  std::string hello = ByteWriter(hello_bytes)
                          .raw(hello_magic)
                          .padded(member_.job_id, job_id_field)
                          .number(static_cast<std::uint32_t>(member_.rank))
                          .number(static_cast<std::uint32_t>(member_.world_size))
                          .number(static_cast<std::uint32_t>(member_.attempt))
                          .number(static_cast<std::uint32_t>(channel_))
                          .raw(nonce_)
                          .take();
  said_ = std::string(challenge) + hello;
  hello += prove(token_, member_.job_id, to_server, said_);
  said_ = std::string(challenge) + hello;
  return hello;
}

void ClientHandshake::confirm(std::string_view frame) const {
  if (frame.size() != verdict_bytes || !frame.starts_with(verdict_magic))
    throw Error(Fault::corrupt, fmt::format("the listener is not a Lockstep {} of this version",
                                            name_of(channel_)));
  const std::string_view body = frame.substr(0, verdict_bytes - mac_bytes);
  ByteReader reader(body.substr(verdict_magic.size()));
  const auto verdict = static_cast<Verdict>(reader.number<std::uint32_t>());
  if (verdict == Verdict::refused)
    throw Error(Fault::misuse,
                fmt::format("the {} refused this {}: it is another job's, or one of us has another "
                            "job token or none",
                            name_of(channel_), client_of(channel_)));
  const std::string right = prove(token_, member_.job_id, to_client, said_ + std::string(body));
  if (!is_proof(frame.substr(body.size()), right))
    throw Error(Fault::corrupt, fmt::format("the {} could not prove that it has this job's token",
                                            name_of(channel_)));

  const std::string job_id(reader.padded(job_id_field));
  const auto world_size = reader.number<std::uint32_t>();
  const auto attempt = reader.number<std::uint32_t>();
  reader.number<std::uint32_t>();
  const std::string_view holder = reader.padded(holder_field);
  switch (verdict) {
    case Verdict::accepted:
      return;
    case Verdict::other_job:
      throw Error(Fault::misuse,
                  fmt::format("the {} is job {}'s, this {} is of job {}", name_of(channel_),
                              in_quotes(job_id), client_of(channel_), in_quotes(member_.job_id)));
    case Verdict::other_world_size:
      throw Error(Fault::misuse,
                  fmt::format("the {} expects {} ranks, this rank {} expects {}", name_of(channel_),
                              world_size, member_.rank, member_.world_size));
    case Verdict::rank_out_of_range:
      throw Error(Fault::misuse, fmt::format("this is rank {}, but the {} expects {} ranks",
                                             member_.rank, name_of(channel_), world_size));
    case Verdict::other_attempt:
      throw Error(Fault::misuse,
                  fmt::format("the {} is of attempt {} of the job, this rank of attempt {}",
                              name_of(channel_), attempt, member_.attempt));
    case Verdict::duplicate:
      throw Error(Fault::misuse, fmt::format("rank {} of job {} is connected already, from {}",
                                             member_.rank, in_quotes(job_id), in_quotes(holder)));
    case Verdict::other_channel:
      throw Error(Fault::misuse,
                  fmt::format("the listener is {}, not a {}",
                              channel_ == Channel::store ? "the job's launcher" : "of this job",
                              name_of(channel_)));
    case Verdict::refused:
      break;
  }
  throw Error(Fault::corrupt, "a verdict of an unknown kind");
}

std::string sha256_hex(std::string_view bytes) {
  std::array<unsigned char, 32> digest{};
  std::size_t length = 0;
  check(EVP_Q_digest(nullptr, "SHA256", nullptr, bytes.data(), bytes.size(), digest.data(),
                     &length) == 1 &&
            length == digest.size(),
        "OpenSSL offers no SHA-256");
  std::string digits;
  for (const unsigned char byte : digest) digits += fmt::format("{:02x}", byte);
  return digits;
}

}  // namespace lockstep
