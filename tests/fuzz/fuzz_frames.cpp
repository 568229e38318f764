// F7: the frames between ranks of different hosts, with arbitrary input. Only an Error may be
// thrown. A frame that was parsed must be equal after it is written and read again.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/error.h"
#include "lockstep/comm/tcp/frames.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

std::string encode(const comm::Frame& frame) {
  return comm::encode_head(frame) + std::string(frame.bytes);
}

void read_all(std::string_view input) {
  try {
    while (const auto parsed = comm::parse_frame(input)) {
      const comm::Frame& frame = parsed->frame;
      expect(parsed->size >= comm::frame_head_bytes && parsed->size <= input.size());
      expect(encode(frame) == input.substr(0, parsed->size));
      if (frame.kind == comm::Frame::Kind::failure) {
        const Failure failure = comm::decode_failure(frame.bytes);
        expect(describe(comm::decode_failure(comm::encode_failure(failure))) == describe(failure));
      }
      if (frame.kind == comm::Frame::Kind::abort) {
        const comm::AbortReason why = comm::decode_abort_reason(frame);
        comm::Frame again = frame;
        const std::string bytes = comm::encode_abort_reason(why);
        again.bytes = bytes;
        expect(describe(comm::decode_abort_reason(again)) == describe(why));
      }
      input.remove_prefix(parsed->size);
    }
  } catch (const Error& error) {
    expect(error.fault() == Fault::corrupt);
  }
}

}  // namespace

std::vector<std::string> seeds() {
  using Kind = comm::Frame::Kind;
  const std::string failure = comm::encode_failure({.rank = 3,
                                                    .host = "node1",
                                                    .pid = 42,
                                                    .signal = 9,
                                                    .oom = false,
                                                    .operation = "all_reduce",
                                                    .sequence = 812,
                                                    .what = "bad \xff text"});
  const std::string late = comm::encode_failure(
      {.rank = 1, .what = "within 3 s", .fault = Fault::timeout, .ranks = {1, 3}, .call = "split"});
  const std::string abort_reason = comm::encode_abort_reason(
      {.rank = 0, .ranks = {1, 3}, .call = "barrier #4", .reason = "bad \xff text"});
  return {encode({.kind = Kind::rank, .number = 1}) +
              encode({.kind = Kind::entry, .group = 7, .number = 1, .bytes = "first half"}) +
              encode({.kind = Kind::entry, .group = 7, .bytes = "second half"}),
          encode({.kind = Kind::failure, .bytes = failure}) + encode({.kind = Kind::finished}),
          encode({.kind = Kind::failure, .bytes = late}),
          encode({.kind = Kind::abort, .group = 7, .number = 3, .bytes = abort_reason}) +
              encode({.kind = Kind::absent, .group = 7}),
          encode({.kind = Kind::data, .group = 7, .number = 1, .bytes = "elements"}) +
              encode({.kind = Kind::read, .group = 7, .number = 8}) +
              encode({.kind = Kind::received, .group = 7, .number = 1})};
}

}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::fuzz::read_all({reinterpret_cast<const char*>(data), size});
  return 0;
}
