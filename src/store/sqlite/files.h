// The files of a store: made for us alone, durable where it counts.
//
// Threads: pure functions over the file system.
#pragma once

#include <string>

#include "base/error.h"

namespace ae::store::sqlite {

// What stands beside a store's file.
inline std::string lock_path(const std::string& path) { return path + ".lock"; }
inline std::string position_path(const std::string& path) { return path + ".position"; }
inline std::string running_path(const std::string& path) { return path + ".running"; }

// The file that a path names: follows symbolic links at its end, also one whose target is not there yet. The files beside a
// store are beside that file, so that every path to a store finds the same lock, socket and position.
std::string real_file(const std::string& path);
// One name for a file, however it is reached: absolute and without symbolic links, as far as the path exists. "" stays "".
std::string full_path(const std::string& path);
// May this be the file of a store? One that is not there yet may. Fails with usage (a folder, a FIFO, a device) ·
// unavailable (the file has other names, whose -wal and lock are others).
Status check_file(const std::string& path);

// The folder that holds it, mode 0700, when it is missing. Fails with unavailable.
Status make_folder(const std::string& path);
// The database's mode is what its -wal and -shm files get too: 0600. REQUIRES: we hold the lock, so no connection of this
// process has the file open (closing a descriptor of it would drop that connection's locks). Fails with unavailable.
Status make_file(const std::string& path);

// Is on the disk when it returns. Fails with unavailable.
Status sync_file(const std::string& path);
Status sync_folder_of(const std::string& path);
// Gives `from` the name `to`, durably, unless there is such a file: already_exists. Fails also with unavailable.
Status move_durably(const std::string& from, const std::string& to);

}  // namespace ae::store::sqlite
