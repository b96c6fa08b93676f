// The files of a store: their paths, and operations that are private (mode 0600) and durable.
//
// Threads: pure functions over the file system.
#pragma once

#include <string>

#include "base/error.h"

namespace ae::store::sqlite {

// Files beside the store's file.
inline std::string lock_path(const std::string& path) { return path + ".lock"; }
inline std::string position_path(const std::string& path) { return path + ".position"; }
inline std::string running_path(const std::string& path) { return path + ".running"; }

// The file that a path names: follows symbolic links at its end, also to a target that does not
// exist yet. The files beside a store are beside that file, so every path to a store leads to the
// same lock, socket and position file.
std::string resolve_symlinks(const std::string& path);
// The canonical path of a file: absolute and without symbolic links, as far as it exists. "" stays
// "".
std::string canonical_path(const std::string& path);
// Checks that a store can be opened at this path; a missing file is accepted. Fails with usage (a
// folder, a FIFO, a device) · unavailable (the file has several hard links, which would use
// different -wal and lock files).
Status check_file(const std::string& path);

// Creates the parent folder of `path` with mode 0700 if it is missing. Fails with unavailable.
Status create_parent_folder(const std::string& path);
// Creates the database file with mode 0600, which SQLite also uses for -wal and -shm. REQUIRES: we
// hold the lock, so no connection of this process has the file open (closing a descriptor of it
// would drop that connection's locks). Fails with unavailable.
Status create_database_file(const std::string& path);

// Durable when it returns. Fails with unavailable.
Status sync_file(const std::string& path);
Status sync_folder_of(const std::string& path);
// Durably renames `from` to `to` without replacing. Fails with already_exists (there is a file
// `to`) · unavailable.
Status move_durably(const std::string& from, const std::string& to);

}  // namespace ae::store::sqlite
