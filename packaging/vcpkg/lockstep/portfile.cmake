# An overlay port, which builds the checkout that contains it:
#
#   vcpkg install lockstep --overlay-ports=packaging/vcpkg
#
# Not tested, because vcpkg was not available.

vcpkg_check_linkage(ONLY_DYNAMIC_LIBRARY)  # Engines are opened at run time.

vcpkg_check_features(OUT_FEATURE_OPTIONS features FEATURES training LOCKSTEP_WITH_TORCH)
if("training" IN_LIST FEATURES)
  if(NOT DEFINED ENV{Torch_DIR})
    message(FATAL_ERROR "lockstep[training] needs LibTorch: set Torch_DIR to the folder of "
                        "its TorchConfig.cmake, and VCPKG_KEEP_ENV_VARS=Torch_DIR")
  endif()
  list(APPEND features "-DTorch_DIR=$ENV{Torch_DIR}")
endif()

cmake_path(SET source NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../../..")
vcpkg_cmake_configure(
  SOURCE_PATH ${source}
  OPTIONS ${features} -DLOCKSTEP_BUILD_TESTS=OFF -DLOCKSTEP_BUILD_EXAMPLES=OFF
          -DLOCKSTEP_BUILD_BENCHMARKS=OFF -DLOCKSTEP_UNITY=ON
          -DLOCKSTEP_WARNINGS_AS_ERRORS=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME Lockstep CONFIG_PATH lib/cmake/Lockstep)
vcpkg_fixup_pkgconfig()

set(programs lockstep lockstep-doctor lockstep-plan lockstep-report lockstep-run lockstep-status
             lockstep-timeline lockstep-top)
if("training" IN_LIST FEATURES)
  list(APPEND programs lockstep-checkpoint lockstep-shard)
endif()
vcpkg_copy_tools(TOOL_NAMES ${programs} AUTO_CLEAN)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${source}/LICENSE")
