#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and installs for conda, which sets CMAKE_ARGS, PREFIX and CPU_COUNT.
set -euo pipefail

read -ra arguments <<<"${CMAKE_ARGS:-}"
cmake -G Ninja -S . -B build/conda "${arguments[@]}" \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$PREFIX" -DCMAKE_INSTALL_PREFIX="$PREFIX" \
  -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_INSTALL_RPATH_USE_LINK_PATH=OFF \
  -DLOCKSTEP_BUILD_TESTS=OFF -DLOCKSTEP_BUILD_EXAMPLES=OFF -DLOCKSTEP_BUILD_BENCHMARKS=OFF \
  -DLOCKSTEP_UNITY=ON -DLOCKSTEP_WARNINGS_AS_ERRORS=OFF
cmake --build build/conda -j "${CPU_COUNT:-2}"
cmake --install build/conda
