// A rank that is configured by its environment alone: rank_of_hosts.h.

// SPDX-License-Identifier: Apache-2.0
#include "tests/hosts/rank_of_hosts.h"

int main(int argc, char** argv) { return lockstep::test::rank_of_hosts(argc, argv); }
