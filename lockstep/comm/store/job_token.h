// The secret that the processes of one job share and nobody else has.
//
// Thread safety: a JobToken is a value; read_job_token() changes the environment, so call it before
// there are threads.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/comm/api.h"

namespace lockstep {

// Overwrites its memory when it goes.
class LOCKSTEP_API JobToken {
 public:
  // Base64, either alphabet, of at least 128 bits: 22 characters. Errors: misuse for less, whose
  // message does not hold the text.
  explicit JobToken(std::string_view text);
  JobToken(const JobToken&) = default;
  JobToken& operator=(const JobToken& other);
  ~JobToken();

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// 256 random bits.
LOCKSTEP_API JobToken make_job_token();

// From the file that LOCKSTEP_JOB_TOKEN_FILE names, else from LOCKSTEP_JOB_TOKEN; empty when
// neither is set. LOCKSTEP_JOB_TOKEN is wiped and unset, so that children and /proc do not show it:
// a second call finds nothing. Errors: misuse for both at once, for a file that is a symbolic link,
// is not this user's or may be read by others, and for a token that is too short.
LOCKSTEP_API std::optional<JobToken> read_job_token();

}  // namespace lockstep
