# What a user gets: headers, both libraries, device modules, ferry.pc and the CMake package Ferry with
# Ferry::ferry, Ferry::ferry_static and Ferry::testing.

include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Ferry)
set(installed ferry)
if(TARGET ferry_testing)
  list(APPEND installed ferry_testing)
endif()

install(DIRECTORY include/ferry DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS ${installed} EXPORT FerryTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${ferry_archive_file} DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET ferry_cuda)
  install(TARGETS ferry_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/ferry)
endif()

install(EXPORT FerryTargets NAMESPACE Ferry:: DESTINATION ${package_dir})
configure_package_config_file(cmake/FerryConfig.cmake.in ${PROJECT_BINARY_DIR}/FerryConfig.cmake
  INSTALL_DESTINATION ${package_dir} PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/FerryConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/FerryConfig.cmake ${PROJECT_BINARY_DIR}/FerryConfigVersion.cmake
  DESTINATION ${package_dir})

# Relative to the .pc file, so that a moved installation still works.
file(RELATIVE_PATH pc_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
configure_file(cmake/ferry.pc.in ${PROJECT_BINARY_DIR}/ferry.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/ferry.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
