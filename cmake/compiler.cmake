# Language, warnings, sanitizers, linker and cache: the same for every target of ours.
set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)

set(AE_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them")
set(AE_TEST_FLAGS "" CACHE STRING "Compiler flags of test files, after those of all files")
set(AE_OPTIMIZED "" CACHE STRING "Modules that are compiled with -O1 whatever the build type is")
set(AE_UNITY 0 CACHE STRING "Sources of a module that are compiled together; 0 = each on its own")
option(AE_TESTS "Build the tests" ON)
option(AE_FUZZ "Offer the fuzzers as target `fuzzers`: wants clang, and `fuzzer-no-link` in AE_SANITIZE" OFF)

add_compile_options(
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror
  # `{.worker = w}` leaves the rest at its defaults on purpose; this warning calls that a mistake.
  -Wno-missing-field-initializers)

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 reports these falsely in std::string, std::vector and coroutine frames (GCC PR 105651,
  # 105329, 105562); the sanitizers of the dev preset find the true ones.
  add_compile_options(
    -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread -Wno-array-bounds
    -Wno-maybe-uninitialized -Wno-free-nonheap-object -Wno-mismatched-new-delete)
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND AE_UNITY)
  add_compile_options(-Wno-subobject-linkage)  # it takes a .cc file for a header when another file includes it
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # libstdc++ 12 uses its own deprecated std::get_temporary_buffer inside std::stable_sort, and clang warns.
  add_compile_options(-Wno-deprecated-declarations)
endif()

# Paths inside released binaries are relative to the tree, so that a build is the same everywhere. Other builds do not
# set the option, because it names the tree: two trees could not share entries of ccache.
add_compile_options($<$<CONFIG:Release,RelWithDebInfo>:-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=>)

if(AE_SANITIZE)
  add_compile_options(-fsanitize=${AE_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${AE_SANITIZE})
  if(AE_SANITIZE MATCHES "thread")
    add_compile_options(-Wno-tsan)  # Asio's fences, which this sanitizer does not model
  endif()
endif()

find_program(AE_CCACHE ccache)
if(AE_CCACHE)
  # A precompiled header is compared by its contents, not by its time.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${AE_CCACHE})
endif()
find_program(AE_MOLD mold)
if(AE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
