# format-check and format: clang-format 14, whose results other versions do not share. tidy: clang-tidy over the library.

find_program(FERRY_CLANG_FORMAT NAMES clang-format-14 clang-format)
find_program(FERRY_RUN_TIDY NAMES run-clang-tidy-14 run-clang-tidy)
set(format_script ${PROJECT_SOURCE_DIR}/cmake/format.sh)
if(FERRY_CLANG_FORMAT)
  add_custom_target(format-check COMMAND ${format_script} ${FERRY_CLANG_FORMAT} --dry-run -Werror
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
  add_custom_target(format COMMAND ${format_script} ${FERRY_CLANG_FORMAT} -i
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
endif()
if(FERRY_RUN_TIDY)
  add_custom_target(tidy COMMAND ${FERRY_RUN_TIDY} -quiet -p ${PROJECT_BINARY_DIR} "/(lib|transports|perf)/.*\\.c$"
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
endif()
