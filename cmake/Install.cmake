# Files that `cmake --install` copies, by component: a package of packaging/debian. `comm`, the
# default, has the engines and the launcher and needs no LibTorch. `full` adds the core, `toolkit`
# the library on top of it. `dev` has the files for compilers.

include(CMakePackageConfigHelpers)

set(targets_of_full lockstep lockstep-checkpoint)
set(targets_of_toolkit lockstep_toolkit lockstep-shard)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
get_property(libraries GLOBAL PROPERTY LOCKSTEP_LIBRARIES)
get_property(programs GLOBAL PROPERTY LOCKSTEP_PROGRAMS)

# An installed copy searches LibTorch at its build-time path last, after a program's own link line
# and LD_LIBRARY_PATH. CMake would remove run paths below the source folder, where ./dev installs
# LibTorch. Packages for other machines set another folder.
set(LOCKSTEP_TORCH_PLACE "" CACHE PATH
    "Where an installed copy looks last for LibTorch; if empty, where it was at build time")
if(LOCKSTEP_WITH_TORCH)
  set(torch_place ${LOCKSTEP_TORCH_PLACE})
  if(NOT torch_place)
    set(torch_place ${TORCH_INSTALL_PREFIX})
  endif()
  set_property(TARGET lockstep lockstep_toolkit lockstep_checkpoint
               APPEND PROPERTY INSTALL_RPATH ${torch_place}/lib)
endif()

function(component_of result target)
  set(${result} comm PARENT_SCOPE)
  foreach(component full toolkit)
    if(target IN_LIST targets_of_${component})
      set(${result} ${component} PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# One export per library, so that a program that uses only comm does not need LibTorch.
set(components "")
foreach(library IN LISTS libraries)
  get_target_property(component ${library} EXPORT_NAME)
  list(APPEND components ${component})
  component_of(runtime ${library})
  install(TARGETS ${library} EXPORT Lockstep_${component}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${runtime} NAMELINK_COMPONENT dev
          FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
  install(EXPORT Lockstep_${component} NAMESPACE Lockstep:: DESTINATION ${package}
          FILE LockstepTargets-${component}.cmake COMPONENT dev)
endforeach()
foreach(program IN LISTS programs)
  component_of(runtime ${program})
  install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${runtime})
endforeach()

if(LOCKSTEP_WITH_TORCH)
  install(DIRECTORY python/lockstep_export DESTINATION ${CMAKE_INSTALL_DATADIR}/lockstep/python
          COMPONENT toolkit FILES_MATCHING PATTERN "*.py")
endif()

configure_package_config_file(cmake/LockstepConfig.cmake.in LockstepConfig.cmake
                              INSTALL_DESTINATION ${package} PATH_VARS CMAKE_INSTALL_LIBDIR)
# Before 1.0, each minor version may break programs built with an earlier one.
write_basic_package_version_file(LockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/LockstepConfig.cmake cmake/Torch.cmake
              ${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
        DESTINATION ${package} COMPONENT dev)

# pkg-config files have paths relative to themselves, so that a copy may be moved.
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR} OR IS_ABSOLUTE ${CMAKE_INSTALL_INCLUDEDIR})
  return()  # The folders of such a copy have no common prefix.
endif()
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
           BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/pkgconfig
           OUTPUT_VARIABLE prefix_of_pc)
set(packages lockstep-comm)
if(LOCKSTEP_WITH_TORCH)
  list(APPEND packages lockstep lockstep-toolkit)
endif()
foreach(name IN LISTS packages)
  configure_file(cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
          COMPONENT dev)
endforeach()
