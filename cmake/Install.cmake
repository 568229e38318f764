# Files that `cmake --install` copies: the libraries, their public headers, the programs of tools/,
# the exporter in Python, and the files for find_package(Lockstep).

include(CMakePackageConfigHelpers)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
get_property(libraries GLOBAL PROPERTY LOCKSTEP_LIBRARIES)
get_property(programs GLOBAL PROPERTY LOCKSTEP_PROGRAMS)

# An installed copy looks last for LibTorch where it was at build time: a program's own link line
# and LD_LIBRARY_PATH come first. CMake removes paths below the source folder from run paths, but
# ./dev puts LibTorch there.
if(LOCKSTEP_WITH_TORCH)
  set(built_with_torch_in ${TORCH_INSTALL_PREFIX}/share/cmake/Torch)
  set_property(TARGET lockstep lockstep_checkpoint APPEND PROPERTY INSTALL_RPATH
               ${TORCH_INSTALL_PREFIX}/lib)
endif()

# One export per library, so that a program that uses only comm need not have LibTorch.
set(components "")
foreach(library IN LISTS libraries)
  get_target_property(component ${library} EXPORT_NAME)
  list(APPEND components ${component})
  install(TARGETS ${library} EXPORT Lockstep_${component}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT Lockstep_${component} NAMESPACE Lockstep:: DESTINATION ${package}
          FILE LockstepTargets-${component}.cmake)
endforeach()
if(programs)
  install(TARGETS ${programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

if(LOCKSTEP_WITH_TORCH)
  install(DIRECTORY python/lockstep_export DESTINATION ${CMAKE_INSTALL_DATADIR}/lockstep/python
          FILES_MATCHING PATTERN "*.py")
endif()

configure_package_config_file(cmake/LockstepConfig.cmake.in LockstepConfig.cmake
                              INSTALL_DESTINATION ${package})
# Before 1.0 every minor version may break programs built with the one before.
write_basic_package_version_file(LockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
              ${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake DESTINATION ${package})
