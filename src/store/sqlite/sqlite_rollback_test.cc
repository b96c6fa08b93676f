// Detection of rollbacks: older copies, replaced files and accepted losses.
#include <fstream>
#include <thread>

#include "store/sqlite/position_file.h"
#include "store/sqlite/sqlite_fixture_test.h"

namespace ae::store {
namespace {

AE_TEST("rollback/a backup that was not restored is refused for writing") {
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  const std::string timeline = fixture.store().timeline();
  ASSERT_TRUE(backup_sqlite(folder / "a.db", folder / "b.db"));
  ASSERT_TRUE(backup_sqlite(folder / "b.db", folder / "again.db"));
  for (const char* name : {"b.db", "again.db"}) {
    SqliteFixture copied(folder / name);
    EXPECT_EQ(copied.open().error().code, Code::store_rolled_back);
    EXPECT_EQ(check_for_lost_writes(folder / name).error().code, Code::store_rolled_back);
    SqliteOptions reading = copied.options();
    reading.read_only = true;
    ASSERT_TRUE(copied.open(reading));
    EXPECT_EQ(copied.load("j0")->row.last_seq, 2U);
    copied.close();
    SqliteOptions accept = copied.options();
    accept.accept_loss = true;
    ASSERT_TRUE(copied.open(accept));
    EXPECT_TRUE(copied.store().accepting());
    EXPECT_NE(copied.store().timeline(), timeline) << "jobs are parked on the new timeline";
  }
  EXPECT_TRUE(fixture.commit(SqliteFixture::append("j0", 2))) << "the original store is not marked";
}

AE_TEST("rollback/an older copy in place of a store is refused for writing and can be read") {
  const TempDir folder(true);
  const std::string path = folder / "a.db";
  SqliteFixture fixture(path);
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  fixture.close();
  copy_store(path, folder / "backup.db");
  EXPECT_TRUE(check_for_lost_writes(path));
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(SqliteFixture::append("j0", 2)));
  fixture.close();
  copy_store(folder / "backup.db", path);
  for (int times = 0; times < 2; ++times) {
    const auto opened = fixture.open();
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, Code::store_rolled_back);
    EXPECT_EQ(opened.error().action, Action{.act = act::kAcceptRollback});
    EXPECT_EQ(check_for_lost_writes(path).error().code, Code::store_rolled_back);
  }
  SqliteOptions reading = fixture.options();
  reading.read_only = true;
  ASSERT_TRUE(fixture.open(reading));
  EXPECT_EQ(fixture.load("j0")->row.last_seq, 2U);
  SqliteFixture elsewhere(folder / "backup.db");
  EXPECT_TRUE(elsewhere.open()) << "there is no position file";
}

AE_TEST("rollback/a lost inbox entry, claim or heartbeat is detected") {
  for (const int what : {0, 1, 2}) {
    const TempDir folder(true);
    const std::string path = folder / "a.db";
    SqliteFixture fixture(path);
    ASSERT_TRUE(fixture.open());
    ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
    fixture.close();
    copy_store(path, folder / "backup.db");
    ASSERT_TRUE(fixture.open());
    if (what == 0) {
      ASSERT_TRUE(fixture.loop.await<Result<void>>([&](auto done) {
        fixture.store().put_inbox(JobId("j0"), {.id = "s", .request = "{}"}, std::move(done));
      }));
    } else {
      ASSERT_EQ(fixture.loop
                    .await<Result<std::vector<Lease>>>([&](auto done) {
                      fixture.store().claim(conformance::ConformanceFixture::claim_request("B"),
                                            std::move(done));
                    })
                    ->size(),
                1U);
    }
    if (what == 2) {
      ASSERT_TRUE(fixture.loop.await<Result<std::vector<std::optional<Instant>>>>([&](auto done) {
        fixture.store().heartbeat({{JobId("j0"), conformance::fence("B", 2)}}, conformance::kLease,
                                  std::move(done));
      }));
    }
    fixture.close();
    ASSERT_TRUE(fixture.open()) << "opening alone is not a rollback";
    fixture.close();
    copy_store(folder / "backup.db", path);
    EXPECT_EQ(fixture.open().error().code, Code::store_rolled_back) << what;
  }
}

AE_TEST("rollback/an accepted loss stays pending until the acceptance is finished") {
  const TempDir folder(true);
  const std::string path = folder / "a.db";
  SqliteFixture fixture(path);
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  fixture.close();
  copy_store(path, folder / "backup.db");
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(SqliteFixture::append("j0", 2)));
  const std::string first = fixture.store().timeline();
  fixture.close();
  copy_store(path, folder / "newer.db");
  copy_store(folder / "backup.db", path);
  SqliteOptions accept = fixture.options();
  accept.accept_loss = true;
  ASSERT_TRUE(fixture.open(accept));
  EXPECT_TRUE(fixture.store().accepting());
  const std::string second = fixture.store().timeline();
  EXPECT_NE(first, second);
  fixture.close();
  EXPECT_EQ(fixture.open().error().code, Code::store_rolled_back)
      << "the acceptance is not finished";
  ASSERT_TRUE(fixture.open(accept));
  EXPECT_TRUE(fixture.store().accepting());
  EXPECT_EQ(fixture.store().timeline(), second) << "one loss, one timeline";
  ASSERT_TRUE(fixture.loop.await<Result<void>>(
      [&](auto done) { fixture.store().finish_accepting(std::move(done)); }));
  fixture.close();
  ASSERT_TRUE(fixture.open());
  EXPECT_FALSE(fixture.store().accepting());
  fixture.close();
  ASSERT_TRUE(fixture.open(accept)) << "nothing was lost";
  EXPECT_FALSE(fixture.store().accepting());
  fixture.close();
  // Both copies are older than the accepted loss, also the one with the higher position.
  for (const char* older : {"newer.db", "backup.db"}) {
    copy_store(folder / older, path);
    EXPECT_EQ(fixture.open().error().code, Code::store_rolled_back) << older;
  }
}

AE_TEST("rollback/a torn, missing or foreign position file does not refuse a store") {
  const TempDir folder(true);
  const std::string path = folder / "a.db";
  SqliteFixture fixture(path);
  const auto open_and_commit = [&](std::uint64_t seq) {
    const auto opened = fixture.open();
    ASSERT_TRUE(opened) << opened.error().message;
    ASSERT_TRUE(fixture.commit(seq == 0 ? SqliteFixture::create("j0")
                                        : SqliteFixture::append("j0", seq + 1)));
    fixture.close();
  };
  open_and_commit(0);
  const std::string file = path + ".position";
  std::filesystem::resize_file(file, 100);
  open_and_commit(1);
  std::filesystem::remove(file);
  open_and_commit(2);
  std::ofstream(file) << std::string(512, 'x');
  open_and_commit(3);
  SqliteFixture other(folder / "b.db");
  ASSERT_TRUE(other.open());
  other.close();
  std::filesystem::copy_file(folder / "b.db", folder / "empty.db");
  ASSERT_TRUE(other.open());
  ASSERT_TRUE(other.commit(SqliteFixture::create("j0")));
  other.close();
  copy_store(folder / "b.db", path);
  open_and_commit(1);
  copy_store(folder / "empty.db", path);
  EXPECT_EQ(fixture.open().error().code, Code::store_rolled_back)
      << "the older copy lacks recorded commits";
  // Damages each slot in turn: the other one counts.
  for (const std::size_t at : {std::size_t{100}, std::size_t{356}}) {
    sqlite::PositionFile two(folder / "two.position");
    ASSERT_TRUE(two.write({std::string(32, 'a'), std::string(32, 'b'), 7}));
    ASSERT_TRUE(two.write({std::string(32, 'a'), std::string(32, 'b'), 8}));
    EXPECT_EQ(two.read()->number, 8U);
    std::fstream slots(folder / "two.position");
    slots.seekp(static_cast<std::streamoff>(at - 70));
    slots.put('#');
    slots.close();
    EXPECT_EQ(two.read()->number, at == 100 ? 8U : 7U);
    std::filesystem::remove(folder / "two.position");
  }
}

// Waits until a new write has a later timestamp than the last write to this file (file times have a
// coarse resolution).
void wait_for_later_file_time(const std::string& path) {
  const std::string now = path + ".now";
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::ofstream(now) << "now";
  } while (std::filesystem::last_write_time(now) <= std::filesystem::last_write_time(path));
  std::filesystem::remove(now);
}

AE_TEST("rollback/a process stops writing if its file is replaced, overwritten or removed") {
  for (const std::string what : {"replaced", "overwritten", "removed"}) {
    const TempDir folder(true);
    const std::string path = folder / "a.db";
    SqliteFixture fixture(path);
    SqliteOptions options = fixture.options();
    options.idle = std::chrono::milliseconds(1);
    ASSERT_TRUE(fixture.open(options));
    ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
    fixture.close();
    copy_store(path, folder / "backup.db");
    ASSERT_TRUE(fixture.open(options));
    ASSERT_TRUE(fixture.commit(SqliteFixture::append("j0", 2)));
    for (int i = 0; i < 2000 && fixture.store().stats().wal_bytes > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // until the WAL is empty
    }
    wait_for_later_file_time(path);
    if (what == "replaced") {
      copy_store(folder / "backup.db", folder / "new.db");
      std::filesystem::rename(folder / "new.db", path);
    } else if (what == "overwritten") {
      std::ifstream from(folder / "backup.db", std::ios::binary);
      std::fstream to(path, std::ios::in | std::ios::out | std::ios::binary);
      to << from.rdbuf();
    } else {
      std::filesystem::remove(path);
    }
    const auto refused = fixture.commit(SqliteFixture::append("j0", 3));
    ASSERT_FALSE(refused) << what;
    EXPECT_EQ(refused.error().code, Code::store_stopped) << what;
    EXPECT_PRED2(contains, refused.error().message, what);
    const auto claimed = fixture.loop.await<Result<std::vector<Lease>>>([&](auto done) {
      fixture.store().claim(conformance::ConformanceFixture::claim_request("B"), std::move(done));
    });
    EXPECT_EQ(claimed.error().code, Code::store_stopped) << what;
    fixture.close();
    if (what == "removed") continue;
    EXPECT_EQ(fixture.open().error().code, Code::store_rolled_back) << what;
    EXPECT_EQ(integrity(path), "ok") << what;
  }
}

AE_TEST("rollback/a file with only a new modification time is checked and used") {
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  std::filesystem::last_write_time(
      folder / "a.db", std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  ASSERT_TRUE(fixture.commit(SqliteFixture::append("j0", 2)));
  EXPECT_EQ(fixture.load("j0")->row.last_seq, 3U);
}

}  // namespace
}  // namespace ae::store
