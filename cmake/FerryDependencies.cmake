# What Ferry is built with: UCX, msgpack-c, DLPack's and uthash's headers, threads, and CUDA where there is a toolkit.

find_package(Threads REQUIRED)
include(FerryUCX)

# libferry takes versioned DLPack tensors too, so it is built with the 1.x header; the public headers
# need no more than 0.6.
find_path(FERRY_DLPACK_INCLUDE dlpack/dlpack.h
          HINTS ${PROJECT_SOURCE_DIR}/.deps/dlpack/include NO_CMAKE_SYSTEM_PATH NO_CMAKE_PATH)
find_path(FERRY_DLPACK_INCLUDE dlpack/dlpack.h)
if(NOT FERRY_DLPACK_INCLUDE)
  message(FATAL_ERROR "dlpack/dlpack.h was not found: run scripts/setup")
endif()
file(STRINGS ${FERRY_DLPACK_INCLUDE}/dlpack/dlpack.h dlpack_lines
     REGEX "#define DLPACK_(MAJOR|MINOR)_VERSION")
string(REGEX REPLACE "[^0-9;]" "" FERRY_DLPACK_VERSION "${dlpack_lines}")
string(REPLACE ";" "." FERRY_DLPACK_VERSION "${FERRY_DLPACK_VERSION}")
if(NOT FERRY_DLPACK_VERSION VERSION_GREATER_EQUAL 1.0)
  message(FATAL_ERROR "${FERRY_DLPACK_INCLUDE}/dlpack/dlpack.h is older than 1.0, which libferry is built "
                      "with: run scripts/setup, or give -DFERRY_DLPACK_INCLUDE=DIR")
endif()

find_path(FERRY_MSGPACK_INCLUDE msgpack.h)
find_library(FERRY_MSGPACK_LIBRARY NAMES msgpackc msgpack-c)
find_path(FERRY_UTHASH_INCLUDE uthash.h)
foreach(need FERRY_MSGPACK_INCLUDE FERRY_MSGPACK_LIBRARY FERRY_UTHASH_INCLUDE)
  if(NOT ${need})
    message(FATAL_ERROR "${need} was not found: run scripts/setup")
  endif()
endforeach()

set(FERRY_HAVE_CUDA OFF)
if(NOT FERRY_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "FERRY_CUDA is '${FERRY_CUDA}', wanted AUTO, ON or OFF")
endif()
if(NOT FERRY_CUDA STREQUAL "OFF")
  find_program(FERRY_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(FERRY_NVCC)
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES "80-real;90") # 90 brings PTX for what comes after it
    endif()
    set(CMAKE_CUDA_COMPILER ${FERRY_NVCC})
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(FERRY_HAVE_CUDA ON)
  elseif(FERRY_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FERRY_CUDA=ON, but no nvcc was found in PATH or /usr/local/cuda/bin")
  endif()
endif()
