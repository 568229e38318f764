#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests and measures Lockstep on a machine with a GPU or many cores that has PyTorch and compilers,
# but no network; see --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
  cat <<END
Usage: bench/on_device.sh pack FOLDER
       bench/on_device.sh run [OPTION...] FOLDER RESULTS

  pack   on a Debian or Ubuntu with network: downloads the packages that Lockstep is built with into
         FOLDER (25 MB). The other machine needs the same processor and no older glibc.
  run    on the other machine, in a copy of the repository: unpacks FOLDER without installing it,
         builds into build/device for the torch of python3, and writes into RESULTS a log of each
         step, the figures of each benchmark, and summary.txt. The steps:
           build         gpu_test and the benchmarks
           gpu-1 gpu-2   gpu_test with one rank, and with two that share the GPU
           ddp-gpu       ./dev bench ddp --device cuda: against PyTorch with NCCL
           scale         ./dev bench scale, with up to all cores
           ddp           ./dev bench ddp, with a rank for each core
         Steps for the GPU are skipped without one. run exits with 1 if a step failed.

  --seconds N     ends the run after N seconds: 570. A step that has no time left is skipped; a
                  second run continues the build.
  --only STEP     runs this step alone; may be repeated

Example:
  bench/on_device.sh pack carried
  rsync -a --exclude build ./ gpu-host:lockstep && ssh gpu-host \\
    'cd lockstep && bench/on_device.sh run carried results'
END
}

fail() {
  printf 'on_device.sh: %s\n' "$*" >&2
  exit 1
}

misuse() {
  printf 'on_device.sh: %s (--help tells more)\n' "$*" >&2
  exit 64
}

# Packages that ./dev installs to compile Lockstep and its tests.
packages=(libcli11-dev libfmt-dev nlohmann-json3-dev libssl-dev zlib1g-dev libxxhash-dev
          libisal-dev libhwloc-dev libarchive-dev libjpeg-dev libpng-dev libwebp-dev
          libgtest-dev)

# Part of every system with a compiler, or needed only to install packages.
present='^(libc6|libc6-dev|libc-|libc-dev|linux-libc|libcrypt|libgcc|gcc|cpp|g\+\+|libstdc|dpkg'
present+='|debconf|cdebconf|perl|libperl|python|libpython|libdb|libgdbm|libtinfo|rpcsvc|libtirpc'
present+='|libnsl|tzdata|autoconf|automake|autotools|m4)'

do_pack() {
  (($# == 1)) || misuse "pack takes a folder"
  command -v apt-get >/dev/null || fail "pack needs apt-get"
  mkdir -p "$1"
  local names
  mapfile -t names < <(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts \
    --no-breaks --no-replaces --no-enhances --no-pre-depends "${packages[@]}" |
    grep '^[a-z0-9]' | grep -vE "$present" | grep -v ':' | sort -u)
  (cd "$1" && rm -f ./*.deb && apt-get download -q "${names[@]}") ||
    fail "apt-get could not download all packages; after apt-get update, try again"
  printf 'on_device.sh: %s packages, %s, in %s\n' "$(find "$1" -name '*.deb' | wc -l)" \
    "$(du -sh "$1" | cut -f1)" "$1"
}

# unpack FOLDER: unpacks the packages and exports variables for compiler, linker and loader.
unpack() {
  local prefix=$root/build/device-packages triplet package link
  triplet=$(gcc -print-multiarch)
  if [[ ! -f $prefix/complete ]]; then
    compgen -G "$1/*.deb" >/dev/null || fail "no packages in $1; make them with pack"
    rm -rf "$prefix"
    mkdir -p "$prefix"
    for package in "$1"/*.deb; do dpkg -x "$package" "$prefix"; done
    # Links to libraries in / lead to those of the packages.
    while read -r link; do
      ln -sfn "$prefix$(readlink "$link")" "$link"
    done < <(find "$prefix" -type l -lname '/*')
    touch "$prefix/complete"
  fi
  export CMAKE_PREFIX_PATH=$prefix/usr
  export CPATH=$prefix/usr/include:$prefix/usr/include/$triplet
  export LIBRARY_PATH=$prefix/usr/lib/$triplet:$prefix/lib/$triplet
  export LD_LIBRARY_PATH=$LIBRARY_PATH${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# step NAME SECONDS COMMAND...: runs a step that needs at least so many seconds, unless it is left
# out.
step() {
  local name=$1 least=$2 left reason code=0
  shift 2
  [[ -z $only || " $only " == *" $name "* ]] || return 0
  left=$((deadline - SECONDS))
  if ((left < least)); then
    note "$name" "skipped: $left s are left"
    return 0
  fi
  timeout --kill-after=5 "$left" "$@" >"$results/$name.txt" 2>&1 </dev/null || code=$?
  if ((code == 0)); then
    note "$name" "passed"
  else
    reason=$(grep -m1 -iE 'error|fail' "$results/$name.txt" || true)
    note "$name" "failed with exit code $code: $reason"
    failed=1
  fi
  return 0
}

note() { printf '%4d s  %-8s %s\n' "$SECONDS" "$1" "$2" | tee -a "$results/summary.txt"; }

build() {
  local site
  site=$(dirname "$torch")
  cmake -S "$root" --preset release -B "$device_build" -DTorch_DIR="$torch/share/cmake/Torch" \
    -DLOCKSTEP_PYTHON="$(command -v python3)" -DLOCKSTEP_NCCL="$site" -DLOCKSTEP_UNITY=ON \
    -DLOCKSTEP_BUILD_TESTS=ON -DLOCKSTEP_BUILD_PYTHON=OFF &&
    cmake --build "$device_build" --target bin/lockstep bin/lockstep-run bench_scale bench_ddp &&
    if [[ -n $gpu ]]; then
      cmake --build "$device_build" --target gpu_test lockstep_engine_nccl
    fi
}

gpu_test() {
  LOCKSTEP_ENGINE_PATH=$device_build/lib LOCKSTEP_TEST_GPU_RANKS=$1 NCCL_MULTI_RANK_GPU_ENABLE=1 \
    OMP_NUM_THREADS=1 "$device_build/tests/gpu_test" --gtest_brief=1
}

# bench NAME STEP OPTION...: the benchmark's table goes to the step's log, its figures to RESULTS.
bench() {
  python3 "$root/bench/$1/bench.py" --build "$device_build" --json "$results/$2.json" "${@:3}"
}

do_run() {
  local seconds=570 carried cores
  only=
  while [[ ${1:-} == -* ]]; do
    case $1 in
      --seconds) seconds=${2:-} ;;
      --only) only+=" ${2:-}" ;;
      *) misuse "run has no option $1" ;;
    esac
    shift $(($# > 1 ? 2 : 1))
  done
  [[ $seconds =~ ^[1-9][0-9]*$ ]] || misuse "--seconds takes a number"
  (($# == 2)) || misuse "run takes two folders"
  carried=$1
  mkdir -p "$2"
  results=$(cd "$2" && pwd)
  device_build=$root/build/device
  deadline=$((SECONDS + seconds))
  failed=0
  : >"$results/summary.txt"
  local show='import torch; print(torch.__path__[0], torch.__version__, sep="\t")' version
  IFS=$'\t' read -r torch version < <(python3 -c "$show") || fail "python3 has no torch"
  unpack "$carried"
  gpu=$(nvidia-smi -L 2>/dev/null || true)
  cores=$(nproc)
  note host "$cores cores, $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs)"
  note gpu "${gpu:-none}"
  note torch "$version"
  # Functions run under timeout, in shells of their own.
  export -f build gpu_test bench
  export root results device_build gpu torch
  step build 60 bash -c build
  if [[ -n $gpu ]]; then
    step gpu-1 30 bash -c 'gpu_test 1'
    step gpu-2 30 bash -c 'gpu_test 2'
    step ddp-gpu 60 bash -c 'bench ddp ddp-gpu --device cuda --models resnet18 gpt --rounds 3'
  else
    note gpu "skipped: this machine has no GPU"
  fi
  step scale 60 bash -c 'bench scale scale --quick'
  step ddp 60 bash -c "bench ddp ddp --ranks $cores --rounds 3"
  exit $failed
}

case ${1:-} in
  pack | run) "do_$1" "${@:2}" ;;
  -h | --help) usage ;;
  *) misuse "'${1:-}' is neither pack nor run" ;;
esac
