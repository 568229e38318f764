// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/exit_code.h"

namespace lockstep {

int exit_code_of(Fault fault) {
  switch (fault) {
    case Fault::misuse:
      return exit_usage;
    case Fault::mismatch:
      return exit_mismatch;
    case Fault::unsupported:
      return exit_unsupported;
    case Fault::timeout:
    case Fault::peer_lost:
    case Fault::aborted:
      return exit_unavailable;
    case Fault::corrupt:
      return exit_corrupt;
    case Fault::system:
      return exit_system;
    case Fault::bug:
      return exit_bug;
  }
  return exit_bug;
}

}  // namespace lockstep
