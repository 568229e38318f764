# Everything that is not ours, found once.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL 3 REQUIRED COMPONENTS Crypto)

if(LOCKSTEP_WITH_TORCH)
  set(LOCKSTEP_TORCH_VERSION 2.13)
  # The CPU wheel's config warns about the static libraries that a wheel leaves out.
  find_package(Torch ${LOCKSTEP_TORCH_VERSION} REQUIRED)
  if(NOT Torch_VERSION MATCHES "^${LOCKSTEP_TORCH_VERSION}([.]|$)")
    message(FATAL_ERROR "Lockstep needs LibTorch ${LOCKSTEP_TORCH_VERSION}, but ${Torch_DIR} holds "
                        "LibTorch ${Torch_VERSION}. Name another with -DTorch_DIR=DIR.")
  endif()
  find_package(ZLIB REQUIRED)

  # Of xxHash the header alone: it is compiled into the one unit that hashes, nothing is linked.
  find_path(LOCKSTEP_XXHASH_DIR xxhash.h REQUIRED)
  add_library(xxhash::header INTERFACE IMPORTED)
  target_include_directories(xxhash::header INTERFACE ${LOCKSTEP_XXHASH_DIR})
endif()

if(LOCKSTEP_BUILD_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
endif()
