// The secret that all processes of one job share and no others have.
//
// Thread safety: a JobToken is a value. read_job_token() changes the environment, so call it before
// starting threads.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/job/store/secret.h"

namespace lockstep {

class LOCKSTEP_API JobToken {
 public:
  // `text` is Base64, either alphabet, of at least 128 bits: 22 characters. Errors: misuse for
  // less; the message does not contain the text.
  explicit JobToken(std::string_view text);

  // Core dumps leave this memory out, but not copies of it.
  std::string_view text() const { return secret_.text(); }

 private:
  Secret secret_;
};

// Returns 256 random bits.
LOCKSTEP_API JobToken make_job_token();

// Reads the file that LOCKSTEP_JOB_TOKEN_FILE names, else LOCKSTEP_JOB_TOKEN; empty when neither is
// set. Wipes and unsets LOCKSTEP_JOB_TOKEN, so that children and /proc do not show it: a second
// call finds nothing. Errors: misuse for both at once, and for a token that is too short. Also for
// a file that is a symbolic link, belongs to another user, or is readable by others.
LOCKSTEP_API std::optional<JobToken> read_job_token();

// Returns the text of LOCKSTEP_JOB_TOKEN for all groups of this process; empty when it was not set.
// Any text is allowed. The first call reads, wipes and unsets the variable.
LOCKSTEP_API const std::optional<Secret>& secret_of_environment();

}  // namespace lockstep
