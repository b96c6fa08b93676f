// Disk errors and power loss at every single disk operation.

#include <fmt/core.h>

#include <atomic>
#include <fstream>
#include <set>

#include "store/sqlite/flaky_vfs_test.h"
#include "store/sqlite/sqlite_fixture_test.h"
#include "testing/seeded_random.h"

namespace ae::store {
namespace {

using Operation = FlakyVfs::Operation;

// The answers to the commits of job j0, in order; stops at the first that is not acknowledged.
struct WriteResult {
  std::uint64_t acked = 0;    // last seq that was acknowledged
  std::uint64_t denied = 0;   // seq of a commit that answered `unavailable`, or 0
  std::uint64_t unknown = 0;  // … `unknown_outcome`
};

// Small limits, so that checkpoints and WAL resets happen between the commits.
SqliteOptions small(SqliteFixture& fixture) {
  SqliteOptions options = fixture.options();
  options.vfs = FlakyVfs::kName;
  options.wal_bytes = 24u << 10;
  options.idle = std::chrono::hours(1);
  return options;
}

WriteResult write_steps(SqliteFixture& fixture, std::uint64_t steps,
                        const std::function<void(std::uint64_t)>& acked = {}) {
  WriteResult written;
  for (std::uint64_t seq = 1; seq <= steps; seq = written.acked) {
    const auto answer = fixture.commit(seq == 1 ? SqliteFixture::create("j0")
                                                : SqliteFixture::append("j0", seq, 3000));
    if (answer) {
      written.acked = answer->last_seq;
      if (acked) acked(written.acked);
      continue;
    }
    const std::uint64_t at = seq == 1 ? 2 : seq + 1;
    const Code code = answer.error().code;
    const bool nothing = code == Code::unavailable || code == Code::store_stopped;
    (nothing ? written.denied : written.unknown) = at;
    EXPECT_TRUE(written.denied != 0 || answer.error().code == Code::unknown_outcome);
    break;
  }
  return written;
}

void expect_consistent(const std::string& path, std::uint64_t acked) {
  EXPECT_EQ(integrity(path), "ok");
  SqliteFixture fixture(path);
  const auto opened = fixture.open();
  ASSERT_TRUE(opened) << opened.error().message;
  const auto loaded = fixture.load("j0");
  if (!loaded) {
    EXPECT_EQ(acked, 0U) << loaded.error().message;
    return;
  }
  EXPECT_GE(loaded->row.last_seq, acked);
  ASSERT_EQ(loaded->commits.size(), loaded->row.last_seq - 1) << "a gap";
  for (std::uint64_t seq = 2; seq < loaded->row.last_seq; ++seq) {
    EXPECT_EQ(loaded->commits[seq - 1], SqliteFixture::append("j0", seq, 3000).sealed->bytes);
  }
}

// One operation fails, the process exits, and a new one checks the store. False if there was no
// such operation.
bool fail_operation(std::uint64_t number, int code) {
  SCOPED_TRACE(fmt::format("operation {} fails with {}", number, code));
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  FlakyVfs& vfs = FlakyVfs::instance();
  vfs.begin([=](std::uint64_t n, Operation operation, const Disk&) {
    if (n != number) return SQLITE_OK;
    return code == SQLITE_FULL || operation == Operation::write ? code : SQLITE_IOERR_FSYNC;
  });
  WriteResult written;
  const auto opened = fixture.open(small(fixture));
  if (opened) {
    written = write_steps(fixture, 14);
    if (written.unknown != 0) {
      EXPECT_EQ(fixture.commit(SqliteFixture::append("j0", written.acked)).error().code,
                Code::store_stopped);
      EXPECT_EQ(fixture.load("j0").error().code, Code::store_stopped)
          << "the stored state is unknown";
    } else if (written.denied != 0 && code == SQLITE_FULL) {
      EXPECT_EQ(fixture.load("j0").has_value(), written.acked > 0);
    }
  } else {
    EXPECT_EQ(opened.error().code, Code::unavailable);
  }
  fixture.close();
  const bool reached = vfs.operations() >= number;
  vfs.begin({});
  expect_consistent(folder / "a.db", written.acked);
  SqliteFixture after(folder / "a.db");
  EXPECT_TRUE(after.open());
  const auto loaded = after.load("j0");
  const std::uint64_t last = loaded ? loaded->row.last_seq : 0;
  if (written.denied != 0) {
    EXPECT_LT(last, written.denied) << "unavailable means that nothing changed";
  }
  if (written.unknown != 0) {
    EXPECT_LE(last, written.unknown);
  }
  return reached;
}

void fail_every(std::uint64_t step) {
  for (const int code : {SQLITE_IOERR_WRITE, SQLITE_FULL}) {
    std::uint64_t n = 1;
    while (fail_operation(n, code) && !::testing::Test::HasFailure()) n += step;
    EXPECT_GT(n, 50U);
  }
}

AE_TEST("sqlite/a disk error loses no acknowledged commit, and unavailable means no change") {
  fail_every(5);
}
AE_TEST_SLOW("sqlite/a disk error at every single operation loses no acknowledged commit") {
  fail_every(1);
}

// Possible contents of a file after a power loss.
std::string after_power_cut(const DiskFile& file, testing::SeededRandom& dice) {
  std::string bytes = file.durable;
  const bool in_order = dice.one_in(2);
  std::uint64_t left = in_order ? dice.below(file.pending.size() + 1) : file.pending.size();
  for (const DiskFile::Change& change : file.pending) {
    if (in_order && left-- == 0) break;
    if (!in_order && dice.one_in(2)) continue;
    DiskFile::Change torn = change;
    if (!torn.truncate && dice.one_in(4)) {
      torn.bytes.resize(std::min<std::size_t>(torn.bytes.size(), 512 * dice.below(9)));
    }
    DiskFile::apply(bytes, torn);
  }
  return bytes;
}

AE_TEST("sqlite/a power loss at any operation loses no acknowledged commit") {
  struct Cut {
    Disk disk;
    std::uint64_t acked;
  };
  const TempDir folder(true);
  std::vector<Cut> cuts;
  std::atomic<std::uint64_t> acked = 0;
  FlakyVfs& vfs = FlakyVfs::instance();
  vfs.begin([&](std::uint64_t, Operation, const Disk& disk) {
    cuts.push_back({disk, acked});
    return SQLITE_OK;
  });
  {
    SqliteFixture fixture(folder / "a.db");
    ASSERT_TRUE(fixture.open(small(fixture)));
    const WriteResult written = write_steps(fixture, 20, [&](std::uint64_t seq) { acked = seq; });
    EXPECT_EQ(written.acked, 21U);
  }
  vfs.begin({});
  ASSERT_GT(cuts.size(), 100U);
  testing::SeededRandom dice(7);
  std::set<std::uint64_t> seen;
  for (std::size_t i = 0; i < cuts.size(); i += 3) {
    SCOPED_TRACE(fmt::format("cut before operation {}", i + 1));
    const TempDir after_loss(true);
    for (const auto& [path, file] : cuts[i].disk) {
      const std::string name = std::filesystem::path(path).filename();
      std::ofstream(after_loss / name, std::ios::binary) << after_power_cut(file, dice);
    }
    expect_consistent(after_loss / "a.db", cuts[i].acked);
    seen.insert(cuts[i].acked);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(seen.size(), 10U);
}

}  // namespace
}  // namespace ae::store
