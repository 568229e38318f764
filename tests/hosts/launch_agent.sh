#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What mpirun calls in the place of ssh, for the hosts of network_hosts.py:
#
#   launch_agent.sh [OPTION...] HOST COMMAND...
#
# As with ssh, a shell there reads COMMAND, and little of the environment here comes along.
# shellcheck disable=SC2016 # What is between single quotes is for a shell over there.
set -eu

while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$LOCKSTEP_TEST_HOSTS$host" unshare --uts \
  env -i HOME="$HOME" PATH="$PATH" LOCKSTEP_TEST_HOSTS="$LOCKSTEP_TEST_HOSTS" \
  sh -c 'hostname "$0" && exec sh -c "$1"' "$host" "$*"
