# Chooses a UCX and defines ferry_ucx (ucp and ucs, by SONAME), FERRY_UCX_VERSION, FERRY_UCX_ORIGIN,
# FERRY_UCX_LIBDIR, FERRY_UCX_KNOWS, and FERRY_UCX_OTHER_LIBDIR: the other build's folder where the
# set-up gave both, for the test that starts one build with the other's libraries.

set(ucx_fetched ${PROJECT_SOURCE_DIR}/.deps/ucx)

# The version of the headers in a folder, or "" where there are none.
function(ucx_version include_dir version_out)
  set(version "")
  if(EXISTS ${include_dir}/ucp/api/ucp_version.h)
    file(STRINGS ${include_dir}/ucp/api/ucp_version.h lines REGEX "#define UCP_API_(MAJOR|MINOR)")
    string(REGEX REPLACE "[^0-9;]" "" version "${lines}")
    string(REPLACE ";" "." version "${version}")
  endif()
  set(${version_out} "${version}" PARENT_SCOPE)
endfunction()

# Where a prefix keeps libucp, or "" where it has none.
function(ucx_libdir prefix libdir_out)
  set(libdir "")
  foreach(folder lib lib64 lib/${CMAKE_LIBRARY_ARCHITECTURE})
    if(NOT libdir AND EXISTS ${prefix}/${folder}/libucp.so)
      set(libdir ${prefix}/${folder})
    endif()
  endforeach()
  set(${libdir_out} "${libdir}" PARENT_SCOPE)
endfunction()

ucx_version(${ucx_fetched}/include version_fetched)
ucx_version(/usr/include version_system)

if(FERRY_UCX STREQUAL "system")
  set(ucx_choice system)
elseif(FERRY_UCX)
  get_filename_component(ucx_choice ${FERRY_UCX} ABSOLUTE BASE_DIR ${CMAKE_BINARY_DIR})
elseif(version_fetched AND (NOT version_system OR version_fetched VERSION_GREATER version_system))
  set(ucx_choice ${ucx_fetched})
else()
  set(ucx_choice system)
endif()

if(ucx_choice STREQUAL "system")
  set(ucx_prefix /usr)
  set(FERRY_UCX_ORIGIN "system")
elseif(ucx_choice STREQUAL ucx_fetched)
  set(ucx_prefix ${ucx_choice})
  set(FERRY_UCX_ORIGIN "pip libucx-cu13")
else()
  set(ucx_prefix ${ucx_choice})
  set(FERRY_UCX_ORIGIN ${ucx_prefix})
endif()

# UCX's own CMake package first. Its imported targets name libucp.so without a SONAME, which the linker
# reads from the file, so that the program asks for libucp.so.0 and takes any build's.
unset(ucx_DIR CACHE)
find_package(ucx CONFIG QUIET PATHS ${ucx_prefix} NO_DEFAULT_PATH)
if(TARGET ucx::ucp)
  get_target_property(ucx_library ucx::ucp IMPORTED_LOCATION)
  get_filename_component(FERRY_UCX_LIBDIR ${ucx_library} DIRECTORY)
  get_target_property(ucx_include ucx::ucp INTERFACE_INCLUDE_DIRECTORIES)
else() # older builds have no CMake package, and a .pc file may name the folder where it was built
  ucx_libdir(${ucx_prefix} FERRY_UCX_LIBDIR)
  set(ucx_include ${ucx_prefix}/include)
endif()
ucx_version("${ucx_include}" FERRY_UCX_VERSION)
if(TARGET ucx::ucp AND ucx_VERSION)
  set(FERRY_UCX_VERSION ${ucx_VERSION}) # with the patch number, which the headers lack
endif()
if(NOT FERRY_UCX_VERSION OR NOT EXISTS ${FERRY_UCX_LIBDIR}/libucp.so)
  message(FATAL_ERROR "No UCX in ${ucx_prefix} (FERRY_UCX='${FERRY_UCX}'): its include/ucp/api/ucp_version.h or "
                      "lib/libucp.so is missing. Run scripts/setup, or give a prefix that holds both.")
endif()

add_library(ferry_ucx INTERFACE)
target_link_libraries(ferry_ucx INTERFACE ${FERRY_UCX_LIBDIR}/libucp.so ${FERRY_UCX_LIBDIR}/libucs.so)
if(NOT ucx_include STREQUAL "/usr/include")
  target_include_directories(ferry_ucx SYSTEM INTERFACE ${ucx_include})
endif()
target_compile_definitions(ferry_ucx INTERFACE
  FERRY_UCX_BUILD_VERSION="${FERRY_UCX_VERSION}" FERRY_UCX_BUILD_ORIGIN="${FERRY_UCX_ORIGIN}")

# CMAKE_INSTALL_RPATH_USE_LINK_PATH leaves out folders inside this tree, which the fetched UCX is.
if(NOT FERRY_UCX_ORIGIN STREQUAL "system")
  set(CMAKE_INSTALL_RPATH ${FERRY_UCX_LIBDIR})
endif()

# What this build can do shows in the modules beside it; shared memory and tcp are in the library itself.
set(FERRY_UCX_KNOWS tcp sysv posix)
foreach(module cma xpmem knem cuda rocm ib rdmacm gdrcopy)
  file(GLOB found ${FERRY_UCX_LIBDIR}/ucx/libuct_${module}.so*)
  if(found)
    list(APPEND FERRY_UCX_KNOWS ${module})
  endif()
endforeach()
list(TRANSFORM FERRY_UCX_KNOWS REPLACE "^ib$" "verbs")

set(FERRY_UCX_OTHER_LIBDIR "")
if(FERRY_UCX_ORIGIN STREQUAL "system" AND version_fetched)
  set(FERRY_UCX_OTHER_LIBDIR ${ucx_fetched}/lib)
elseif(NOT FERRY_UCX_ORIGIN STREQUAL "system" AND version_system)
  ucx_libdir(/usr FERRY_UCX_OTHER_LIBDIR)
endif()
