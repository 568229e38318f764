#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Replacement of ssh for mpirun, for the hosts of network_hosts.py:
#
#   launch_agent.sh [OPTION...] HOST COMMAND...
#
# As with ssh, a shell on the host reads COMMAND, and gets little of the environment here.
# shellcheck disable=SC2016 # Text between single quotes is for a shell on the host.
set -eu

while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$LOCKSTEP_TEST_HOSTS$host" unshare --uts \
  env -i HOME="$HOME" PATH="$PATH" LOCKSTEP_TEST_HOSTS="$LOCKSTEP_TEST_HOSTS" \
  sh -c 'hostname "$0" && exec sh -c "$1"' "$host" "$*"
