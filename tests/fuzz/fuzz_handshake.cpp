// F2: both ends of the handshake, with arbitrary input. No peer without the token may connect, and
// only an Error may be thrown. The first byte selects the end.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/error.h"
#include "lockstep/job/store/handshake.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

const JobMember job{"fuzzed job", 1, 4, 0};
const std::optional<JobToken> token{JobToken("AAAAAAAAAAAAAAAAAAAAAAAAAAAA")};
const std::string nonce(nonce_bytes, '\x5a');

std::optional<std::string> nobody(const JobMember&) { return std::nullopt; }

// The one conversation that succeeds. Its inputs are fixed, so that every run is the same.
struct Conversation {
  ServerHandshake server{job, token, nonce};
  ClientHandshake client{job, token, nonce};
  std::string challenge = server.challenge();
  std::string hello = client.hello(challenge);
  std::string verdict = server.answer(hello, nobody).frame;
};

void to_server(const Conversation& right, const std::string& hello) {
  const auto answer = right.server.answer(hello, nobody);
  expect(answer.frame.size() == verdict_bytes);
  expect((answer.verdict == Verdict::accepted) == (hello == right.hello));
}

void to_client(const Conversation& right, const std::string& frame) {
  bool content = true;
  try {
    right.client.confirm(frame);
  } catch (const Error& error) {
    expect(error.fault() == Fault::corrupt || error.fault() == Fault::misuse);
    content = false;
  }
  expect(content == (frame == right.verdict));
}

void challenge_client(const std::string& challenge) {
  try {
    expect(ClientHandshake(job, token, nonce).hello(challenge).size() == hello_bytes);
  } catch (const Error& error) {
    expect(error.fault() == Fault::corrupt);
  }
}

}  // namespace

std::vector<std::string> seeds() {
  const Conversation right;
  return {'\0' + right.hello, '\1' + right.verdict, '\2' + right.challenge};
}

}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::fuzz;
  static const Conversation right;
  if (size == 0) return 0;
  const std::string frame(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 3 == 0) to_server(right, frame);
  if (data[0] % 3 == 1) to_client(right, frame);
  if (data[0] % 3 == 2) challenge_client(frame);
  return 0;
}
