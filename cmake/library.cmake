# The library aetheris::aetheris: the module `embed` and all that it depends on, in one archive.
#
#   cmake --build build/release --target aetheris_library
#   cmake --install build/release --component library --prefix DIR
#
# DIR then has lib/libaetheris.a, include/aetheris and lib/cmake/aetheris, which finds the libraries of the system that
# the archive needs. A project says find_package(aetheris) and links aetheris::aetheris; in this tree the name is an
# alias.
function(ae_add_library module)
  add_library(aetheris::aetheris ALIAS ae_${module})
  set(pending ae_${module})
  set(seen "")
  set(externals "")
  while(pending)
    list(POP_FRONT pending target)
    if(target IN_LIST seen)
      continue()
    endif()
    list(APPEND seen ${target})
    get_property(depends GLOBAL PROPERTY AE_DEPENDS_${target})
    get_property(libs GLOBAL PROPERTY AE_LIBS_${target})
    list(APPEND externals ${libs})
    foreach(module ${depends})
      string(REPLACE "/" "_" module ${module})
      list(APPEND pending ae_${module})
    endforeach()
  endwhile()

  set(script "create libaetheris.a\n")
  set(archives "")
  foreach(target ${seen})
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "STATIC_LIBRARY")
      list(APPEND archives ${target})
      string(APPEND script "addlib $<TARGET_FILE:${target}>\n")
    endif()
  endforeach()
  string(APPEND script "save\nend\n")
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/library.mri CONTENT "${script}")
  add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/libaetheris.a
    COMMAND ${CMAKE_AR} -M < ${CMAKE_BINARY_DIR}/library.mri
    COMMAND ${CMAKE_STRIP} --strip-debug libaetheris.a
    DEPENDS ${archives} ${CMAKE_BINARY_DIR}/library.mri VERBATIM)
  add_custom_target(aetheris_library DEPENDS ${CMAKE_BINARY_DIR}/libaetheris.a)

  list(REMOVE_DUPLICATES externals)
  set(linked Threads::Threads)
  foreach(lib ${externals})
    ae_external(${lib} found)
    list(APPEND linked ${found})
  endforeach()
  list(REMOVE_DUPLICATES linked)
  list(REMOVE_ITEM linked Boost::headers)  # compiled into the archive
  set(AE_LIBRARY_LINKED ${linked})
  configure_file(${CMAKE_SOURCE_DIR}/cmake/aetherisConfig.cmake.in ${CMAKE_BINARY_DIR}/aetherisConfig.cmake @ONLY)

  install(FILES ${CMAKE_BINARY_DIR}/libaetheris.a DESTINATION lib COMPONENT library OPTIONAL)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/aetheris DESTINATION include COMPONENT library)
  install(FILES ${CMAKE_BINARY_DIR}/aetherisConfig.cmake DESTINATION lib/cmake/aetheris COMPONENT library)
endfunction()
