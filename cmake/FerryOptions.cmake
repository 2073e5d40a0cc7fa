# How every target of this tree is compiled.

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)

# An installed library finds the UCX that it was built against, and LD_LIBRARY_PATH can still name
# another one: RUNPATH yields to it, RPATH would not.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON) # a build folder can be moved

set(for_c "$<COMPILE_LANGUAGE:C,CXX>")
add_library(ferry_options INTERFACE)
target_compile_definitions(ferry_options INTERFACE _GNU_SOURCE)
target_compile_options(ferry_options INTERFACE
  "$<${for_c}:-Wall;-Wextra;-Wshadow;-Wconversion>"
  "$<$<AND:$<BOOL:${FERRY_WERROR}>,${for_c}>:-Werror>"
  "$<$<COMPILE_LANG_AND_ID:C,GNU>:-Wno-format-truncation>" # a text that does not fit is cut on purpose
  "$<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-sign-conversion>")
target_link_options(ferry_options INTERFACE "$<$<LINK_LANGUAGE:C,CXX>:-Wl,--enable-new-dtags>"
  "$<$<LINK_LANGUAGE:CUDA>:SHELL:-Xlinker --enable-new-dtags>")

# The way of a call goes through many short functions of many files: worth a tenth of its time.
set(FERRY_LTO OFF)
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND CMAKE_C_COMPILER_ID STREQUAL "GNU" AND NOT FERRY_SANITIZE)
  set(FERRY_LTO ON)
endif()

if(FERRY_SANITIZE)
  set(sanitize -fsanitize=${FERRY_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_compile_options(ferry_options INTERFACE "$<${for_c}:${sanitize}>"
    "$<$<COMPILE_LANG_AND_ID:C,GNU>:-Wno-maybe-uninitialized>") # misled by the sanitizer's own code
  target_link_options(ferry_options INTERFACE "$<$<LINK_LANGUAGE:C,CXX>:${sanitize}>")
endif()

# A program of this tree links libferry.so as a user would, unless its source includes an internal header.
function(ferry_link_program name source)
  file(STRINGS ${source} internal REGEX "^#include \"(core|device|naming|rpc|transports)/")
  if(internal)
    target_link_libraries(${name} PRIVATE ferry_internal)
  else()
    target_link_libraries(${name} PRIVATE ferry ferry_options Threads::Threads ${CMAKE_DL_LIBS} m)
  endif()
endfunction()
