// FlakyVfs: a SQLite VFS that injects disk errors and simulates power loss.
//
// It forwards everything to the system's VFS, counts writes, truncations and syncs, and can make
// one of them fail. For every file it records the durable contents (as of the last sync) and the
// later changes. A power loss is then the durable contents plus any part of the changes, the last
// one torn: the method of SQLite's own crash tests.
#pragma once

#include <sqlite3.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ae::store {

// A file on disk: its durable contents and the later changes, in order.
struct DiskFile {
  struct Change {
    std::size_t offset = 0;
    std::string bytes;      // a write …
    bool truncate = false;  // … or a truncation to offset
  };
  std::string durable;
  std::vector<Change> pending;

  static void apply(std::string& to, const Change& change) {
    if (change.truncate) {
      to.resize(change.offset);
      return;
    }
    if (to.size() < change.offset + change.bytes.size()) {
      to.resize(change.offset + change.bytes.size());
    }
    to.replace(change.offset, change.bytes.size(), change.bytes);
  }
  void sync() {
    for (const Change& change : pending) apply(durable, change);
    pending.clear();
  }
};
using Disk = std::map<std::string, DiskFile>;  // by path

class FlakyVfs {
 public:
  enum class Operation : std::uint8_t { write, sync };

  static FlakyVfs& instance() {
    static FlakyVfs vfs;  // SQLite keeps a pointer to it until the process exits
    return vfs;
  }
  static constexpr const char* kName = "aetheris-flaky";

  // Resets the state. `before` is called before each operation with its number (from 1) and returns
  // SQLITE_OK or the error to inject.
  using Before = std::function<int(std::uint64_t number, Operation operation, const Disk& disk)>;
  void begin(Before before) {
    const std::lock_guard lock(mutex_);
    before_ = std::move(before);
    operations_ = 0;
    disk_.clear();
  }
  std::uint64_t operations() {
    const std::lock_guard lock(mutex_);
    return operations_;
  }

 private:
  struct File {
    sqlite3_file base;
    std::string* path;  // owned
    sqlite3_file* real() { return reinterpret_cast<sqlite3_file*>(this + 1); }
  };
  static File* of(sqlite3_file* file) { return reinterpret_cast<File*>(file); }
  static sqlite3_file* real(sqlite3_file* file) { return of(file)->real(); }

  FlakyVfs() : real_(sqlite3_vfs_find(nullptr)), vfs_(*real_) {
    vfs_.zName = kName;
    vfs_.szOsFile = static_cast<int>(sizeof(File)) + real_->szOsFile;
    vfs_.pNext = nullptr;
    vfs_.xOpen = open;
    vfs_.xDelete = [](sqlite3_vfs*, const char* name, int sync) {
      FlakyVfs& self = instance();
      {
        const std::lock_guard lock(self.mutex_);
        self.disk_.erase(name);
      }
      return self.real_->xDelete(self.real_, name, sync);
    };
    AE_CHECK(sqlite3_vfs_register(&vfs_, 0) == SQLITE_OK);
  }

  static int open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
    FlakyVfs& self = instance();
    File* mine = of(file);
    mine->base.pMethods = nullptr;
    const int code = self.real_->xOpen(self.real_, name, mine->real(), flags, out_flags);
    if (code != SQLITE_OK) return code;
    mine->path = new std::string(name == nullptr ? "" : name);
    mine->base.pMethods = methods(mine->real()->pMethods->iVersion);
    return SQLITE_OK;
  }

  static const sqlite3_io_methods* methods(int version) {
    static sqlite3_io_methods table = make_methods();
    AE_CHECK(version >= 3);
    return &table;
  }

  static sqlite3_io_methods make_methods() {
    sqlite3_io_methods m{};
    m.iVersion = 3;
    m.xClose = [](sqlite3_file* f) {
      delete of(f)->path;
      return real(f)->pMethods->xClose(real(f));
    };
    m.xRead = [](sqlite3_file* f, void* to, int size, sqlite3_int64 at) {
      return real(f)->pMethods->xRead(real(f), to, size, at);
    };
    m.xWrite = [](sqlite3_file* f, const void* from, int size, sqlite3_int64 at) {
      const std::string_view bytes(static_cast<const char*>(from), static_cast<std::size_t>(size));
      const int code =
          instance().note(of(f)->path, Operation::write,
                          {.offset = static_cast<std::size_t>(at), .bytes = std::string(bytes)});
      return code != SQLITE_OK ? code : real(f)->pMethods->xWrite(real(f), from, size, at);
    };
    m.xTruncate = [](sqlite3_file* f, sqlite3_int64 size) {
      const int code = instance().note(
          of(f)->path, Operation::write,
          {.offset = static_cast<std::size_t>(size), .bytes = {}, .truncate = true});
      return code != SQLITE_OK ? code : real(f)->pMethods->xTruncate(real(f), size);
    };
    m.xSync = [](sqlite3_file* f, int flags) {
      const int code = instance().note(of(f)->path, Operation::sync, {});
      return code != SQLITE_OK ? code : real(f)->pMethods->xSync(real(f), flags);
    };
    m.xFileSize = [](sqlite3_file* f, sqlite3_int64* size) {
      return real(f)->pMethods->xFileSize(real(f), size);
    };
    m.xLock = [](sqlite3_file* f, int lock) { return real(f)->pMethods->xLock(real(f), lock); };
    m.xUnlock = [](sqlite3_file* f, int lock) { return real(f)->pMethods->xUnlock(real(f), lock); };
    m.xCheckReservedLock = [](sqlite3_file* f, int* out) {
      return real(f)->pMethods->xCheckReservedLock(real(f), out);
    };
    m.xFileControl = [](sqlite3_file* f, int op, void* arg) {
      return real(f)->pMethods->xFileControl(real(f), op, arg);
    };
    m.xSectorSize = [](sqlite3_file* f) { return real(f)->pMethods->xSectorSize(real(f)); };
    m.xDeviceCharacteristics = [](sqlite3_file* f) {
      return real(f)->pMethods->xDeviceCharacteristics(real(f));
    };
    m.xShmMap = [](sqlite3_file* f, int page, int size, int extend, void volatile** out) {
      return real(f)->pMethods->xShmMap(real(f), page, size, extend, out);
    };
    m.xShmLock = [](sqlite3_file* f, int offset, int n, int flags) {
      return real(f)->pMethods->xShmLock(real(f), offset, n, flags);
    };
    m.xShmBarrier = [](sqlite3_file* f) { real(f)->pMethods->xShmBarrier(real(f)); };
    m.xShmUnmap = [](sqlite3_file* f, int del) {
      return real(f)->pMethods->xShmUnmap(real(f), del);
    };
    m.xFetch = [](sqlite3_file*, sqlite3_int64, int, void** out) {
      *out = nullptr;
      return SQLITE_OK;
    };
    m.xUnfetch = [](sqlite3_file*, sqlite3_int64, void*) { return SQLITE_OK; };
    return m;
  }

  int note(const std::string* path, Operation operation, DiskFile::Change change) {
    const std::lock_guard lock(mutex_);
    ++operations_;
    const int code = before_ ? before_(operations_, operation, disk_) : SQLITE_OK;
    if (code != SQLITE_OK) return code;
    DiskFile& file = disk_[*path];
    if (operation == Operation::sync) {
      file.sync();
    } else {
      file.pending.push_back(std::move(change));
    }
    return SQLITE_OK;
  }

  sqlite3_vfs* real_;
  sqlite3_vfs vfs_;
  std::mutex mutex_;
  Before before_;
  std::uint64_t operations_ = 0;
  Disk disk_;
};

}  // namespace ae::store
