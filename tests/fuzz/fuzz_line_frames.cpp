// F7: the frames between ranks of different hosts, with arbitrary input. Nothing but an Error comes
// out. A frame that is understood must read the same after it is written again.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/error.h"
#include "lockstep/comm/lines/line_frames.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

std::string encode(const LineFrame& frame) { return encode_head(frame) + std::string(frame.bytes); }

void read_all(std::string_view input) {
  try {
    while (const auto parsed = parse_line_frame(input)) {
      const LineFrame& frame = parsed->frame;
      expect(parsed->size >= line_head_bytes && parsed->size <= input.size());
      expect(encode(frame) == input.substr(0, parsed->size));
      if (frame.kind == LineFrame::Kind::failure) {
        const Failure failure = decode_failure(frame.bytes);
        expect(describe(decode_failure(encode_failure(failure))) == describe(failure));
      }
      if (frame.kind == LineFrame::Kind::give_up) {
        const GivenUp why = decode_given_up(frame);
        LineFrame again = frame;
        const std::string bytes = encode_given_up(why);
        again.bytes = bytes;
        expect(describe(decode_given_up(again)) == describe(why));
      }
      input.remove_prefix(parsed->size);
    }
  } catch (const Error& error) {
    expect(error.fault() == Fault::corrupt);
  }
}

}  // namespace

std::vector<std::string> seeds() {
  using Kind = LineFrame::Kind;
  const std::string failure = encode_failure({.rank = 3,
                                              .host = "node1",
                                              .pid = 42,
                                              .signal = 9,
                                              .oom = false,
                                              .operation = "all_reduce",
                                              .sequence = 812,
                                              .what = "bad \xff text"});
  const std::string late = encode_failure(
      {.rank = 1, .what = "within 3 s", .fault = Fault::timeout, .ranks = {1, 3}, .call = "split"});
  const std::string given_up = encode_given_up(
      {.rank = 0, .ranks = {1, 3}, .call = "barrier #4", .reason = "bad \xff text"});
  return {encode({.kind = Kind::rank, .number = 1}) +
              encode({.kind = Kind::entry, .group = 7, .number = 1, .bytes = "first half"}) +
              encode({.kind = Kind::entry, .group = 7, .bytes = "second half"}),
          encode({.kind = Kind::failure, .bytes = failure}) + encode({.kind = Kind::finished}),
          encode({.kind = Kind::failure, .bytes = late}),
          encode({.kind = Kind::give_up, .group = 7, .number = 3, .bytes = given_up}) +
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
