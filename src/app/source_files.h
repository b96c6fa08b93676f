// SourceFiles: whether the source files below a folder have changed, as `dev` polls them.
//
// Files of code by their extension, and one file whatever its extension. Folders of packages,
// caches and builds are left out: node_modules, __pycache__, and all whose name begins with a dot.
// As docs/decisions/0077: polling works with editors that replace a file, and on network file
// systems. Threads: any; blocking.
#pragma once

#include <cstddef>
#include <string>

#include "base/hash.h"

namespace ae::app {

constexpr std::size_t kSourceFilesMax = 10'000;  // files and folders that are read; others are not

// A hash over names, sizes and times. Equal: no file has changed.
Hash source_stamp(const std::string& folder, const std::string& file);

}  // namespace ae::app
