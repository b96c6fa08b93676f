// Several processes: a second owner, an owner that is killed, a folder that cannot be written, a
// file-size limit. A child process reports failure by its exit code; it never returns into the test
// program.

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <map>
#include <thread>

#include "store/sqlite/sqlite_fixture_test.h"
#include "testing/seeded_random.h"

namespace ae::store {
namespace {

// A child process and the pipe it writes to.
class Child {
 public:
  explicit Child(const std::function<int(int pipe)>& body) {
    int ends[2];
    AE_CHECK(::pipe2(ends, O_CLOEXEC) == 0);
    pid_ = ::fork();
    AE_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      ::close(ends[0]);
      ::_exit(body(ends[1]));
    }
    ::close(ends[1]);
    read_end_ = ends[0];
  }
  ~Child() {
    kill();
    if (read_end_ >= 0) ::close(read_end_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid() const { return pid_; }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    (void)wait();
  }
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string read_some() {
    char buffer[4096];
    const ssize_t size = ::read(read_end_, buffer, sizeof buffer);
    return size > 0 ? std::string(buffer, static_cast<std::size_t>(size)) : "";
  }
  std::string read_all() {
    std::string all;
    for (std::string some = read_some(); !some.empty(); some = read_some()) all += some;
    return all;
  }

 private:
  pid_t pid_ = -1;
  int read_end_ = -1;
};

void write_to(int pipe, const std::string& text) {
  AE_CHECK(::write(pipe, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

AE_TEST("sqlite/a second owner is refused with the process id of the first") {
  const TempDir folder(true);
  Child owner([&](int pipe) {
    SqliteFixture fixture(folder / "a.db");
    if (!fixture.open()) return 1;
    write_to(pipe, "open");
    ::pause();
    return 2;
  });
  ASSERT_EQ(owner.read_some(), "open");
  SqliteFixture second(folder / "a.db");
  const auto refused = second.open();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::store_locked);
  EXPECT_PRED2(contains, refused.error().message, fmt::format("process {}", owner.pid()));
  owner.kill();
  EXPECT_TRUE(second.open()) << "the lock ends with its owner";
  SqliteFixture third(folder / "a.db");
  EXPECT_EQ(third.open().error().code, Code::store_locked) << "also within one process";
}

// Commits steps of eight jobs and reports each acknowledged one, until it is killed.
int write_until_killed(SqliteFixture& fixture, int pipe) {
  if (!fixture.open()) return 1;
  int broken = 0;
  std::function<void(int, std::uint64_t)> step = [&](int job, std::uint64_t seq) {
    const std::string id = fmt::format("j{}", job);
    Batch b = seq == 0 ? SqliteFixture::create(id) : SqliteFixture::append(id, seq, 300);
    fixture.store().commit(std::move(b), [&, job, id](Result<CommitResult> answer) {
      if (!answer) {
        broken = 3;
        return;
      }
      write_to(pipe, fmt::format("{} {}\n", id, answer->last_seq));
      step(job, answer->last_seq);
    });
  };
  for (int job = 0; job < 8; ++job) step(job, 0);
  fixture.loop.run_until([&] { return broken != 0; });
  return broken;
}

void kill_while_writing(std::uint64_t seed) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  testing::SeededRandom dice(seed);
  const TempDir folder;
  Child writer([&](int pipe) {
    SqliteFixture fixture(folder / "a.db");
    return write_until_killed(fixture, pipe);
  });
  // Kills it at a random time after the first acknowledgements.
  std::string output = writer.read_some();
  std::this_thread::sleep_for(std::chrono::microseconds(dice.below(20'000)));
  writer.kill();
  output += writer.read_all();
  std::map<std::string, std::uint64_t> acked;
  for (std::size_t at = 0, end = 0; (end = output.find('\n', at)) != std::string::npos;
       at = end + 1) {
    const std::string group = output.substr(at, end - at);
    acked[group.substr(0, group.find(' '))] = std::stoull(group.substr(group.find(' ') + 1));
  }
  ASSERT_FALSE(acked.empty()) << output;
  SqliteFixture after(folder / "a.db");
  ASSERT_TRUE(after.open());
  for (const auto& [job, seq] : acked) {
    const auto loaded = after.load(job);
    ASSERT_TRUE(loaded) << job;
    EXPECT_GE(loaded->row.last_seq, seq) << job << " lost what was acknowledged";
    EXPECT_LE(loaded->row.last_seq, seq + 1) << job;
    ASSERT_EQ(loaded->commits.size(), loaded->row.last_seq - 1) << job << " has a gap";
    for (std::uint64_t at = 2; at < loaded->row.last_seq; ++at) {
      EXPECT_EQ(loaded->commits[at - 1], SqliteFixture::append(job, at, 300).sealed->bytes);
    }
  }
  after.close();
  EXPECT_EQ(integrity(folder / "a.db"), "ok");
}

AE_TEST("sqlite/every acknowledged commit survives kill -9") {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) kill_while_writing(seed);
}
AE_TEST_SLOW("sqlite/every acknowledged commit survives kill -9, repeated a hundred times") {
  for (std::uint64_t seed = 100; seed < 200; ++seed) kill_while_writing(seed);
}

AE_TEST("sqlite/a folder without write permission is reported and can be read") {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to switch to the user nobody";
  const TempDir folder(true);
  {
    SqliteFixture owner(folder / "a.db");
    ASSERT_TRUE(owner.open());
    ASSERT_TRUE(owner.commit(SqliteFixture::create("j0")));
  }
  ::chmod(folder.path().c_str(), 0555);
  ::chmod((folder / "a.db").c_str(), 0444);
  Child child([&](int pipe) {
    if (::setuid(65534) != 0) return 9;
    SqliteFixture fixture(folder / "a.db");
    const auto opened = fixture.open();
    write_to(pipe, opened ? "opened" : opened.error().message);
    SqliteOptions options = fixture.options();
    options.read_only = true;
    const auto reading = fixture.open(options);
    if (!reading) write_to(pipe, reading.error().message);
    if (!reading) return 3;
    return fixture.load("j0")->row.last_seq == 2 ? 0 : 4;
  });
  const std::string message = child.read_all();
  EXPECT_EQ(child.wait(), 0);
  EXPECT_PRED2(contains, message, "folder writable?");
  ::chmod(folder.path().c_str(), 0700);
}

// Fills the disk with commits until one is refused. Then small writes still succeed, and after
// `make_room` all do.
int fill_up(SqliteFixture& fixture, const std::function<void()>& make_room) {
  if (!fixture.open() || !fixture.commit(SqliteFixture::create("j0"))) return 1;
  std::uint64_t seq = 2;
  for (;; ++seq) {
    if (seq > 5000) return 2;
    // Large ones: after one does not fit, there is space for two small ones.
    const auto answer = fixture.commit(SqliteFixture::append("j0", seq, 210'000));
    if (answer) continue;
    if (answer.error().code != Code::unavailable) return 3;
    if (answer.error().message.find("space") == std::string::npos) return 4;
    break;
  }
  // Reads still work; the refused commit is absent.
  if (fixture.load("j0")->row.last_seq != seq) return 5;
  // One write of a group is too large for the remaining space: the small ones succeed.
  std::string answers;
  for (int i = 0; i < 3; ++i) {
    Batch b = SqliteFixture::create(fmt::format("k{}", i), i == 1 ? 8u << 20 : 0);
    fixture.store().commit(std::move(b),
                           [&](Result<CommitResult> answer) { answers += answer ? '+' : '-'; });
  }
  fixture.loop.run_until([&] { return answers.size() == 3; });
  if (answers != "+-+" && answers != "---") return 6;
  make_room();
  // It recovers without a restart.
  if (!fixture.commit(SqliteFixture::append("j0", seq, 20'000))) return 7;
  if (!fixture.commit(SqliteFixture::create("k1", 8u << 20))) return 8;
  if (fixture.load("j0")->commits.size() != seq) return 9;
  fixture.close();
  if (!fixture.open()) return 10;
  if (fixture.load("j0")->row.last_seq != seq + 1) return 11;
  return answers == "+-+" ? 0 : 20;
}

AE_TEST("sqlite/a file-size limit acts as a full disk: no changes, then recovery") {
  const TempDir folder(true);
  Child child([&](int) {
    ::signal(SIGXFSZ, SIG_IGN);
    const auto limit = [](rlim_t bytes) {
      const rlimit limit{bytes, RLIM_INFINITY};
      AE_CHECK(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
    };
    limit(2u << 20);
    SqliteFixture fixture(folder / "a.db");
    return fill_up(fixture, [&] { limit(RLIM_INFINITY); });
  });
  EXPECT_EQ(child.wait() % 20, 0);
  EXPECT_EQ(integrity(folder / "a.db"), "ok");
}

// Uses all free space of the disk of this folder.
bool fill(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  const std::string block(4096, 'x');
  while (::write(fd, block.data(), block.size()) > 0) {
  }
  const bool full = errno == ENOSPC;
  ::close(fd);
  return full;
}

AE_TEST("sqlite/opening on a full disk fails with the disk and the remedy") {
  const TempDir folder(true);
  const std::string disk = folder / "disk";
  ::mkdir(disk.c_str(), 0700);
  if (::mount("aetheris-test", disk.c_str(), "tmpfs", 0, "size=4m") != 0) {
    GTEST_SKIP() << "may not mount a small tmpfs";
  }
  const auto try_open = [&](const std::string& name) {
    SqliteFixture fixture(fmt::format("{}/{}", disk, name));
    const auto opened = fixture.open();
    EXPECT_FALSE(opened) << name;
    if (opened) return;
    EXPECT_EQ(opened.error().code, Code::unavailable) << name;
    EXPECT_PRED2(contains, opened.error().message, disk + " is full; free some space there");
    EXPECT_PRED2(contains, opened.error().message, name);
  };
  {
    SqliteFixture fixture(disk + "/old.db");
    EXPECT_TRUE(fixture.open());
    EXPECT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  }
  EXPECT_TRUE(fill(disk + "/filler"));
  try_open("new.db");
  try_open("old.db");
  ::unlink((disk + "/filler").c_str());
  {
    SqliteFixture fixture(disk + "/old.db");
    EXPECT_TRUE(fixture.open()) << "free space is all it needs";
    EXPECT_EQ(fixture.load("j0")->commits.size(), 1U);
  }
  ::umount2(disk.c_str(), MNT_DETACH);
}

AE_TEST("sqlite/a full disk refuses commits without changes and recovers when space is freed") {
  const TempDir folder(true);
  const std::string disk = folder / "disk";
  ::mkdir(disk.c_str(), 0700);
  if (::mount("aetheris-test", disk.c_str(), "tmpfs", 0, "size=4m") != 0) {
    GTEST_SKIP() << "may not mount a small tmpfs";
  }
  Child child([&](int) {
    SqliteFixture fixture(disk + "/a.db");
    return fill_up(fixture, [&] {
      AE_CHECK(::mount("aetheris-test", disk.c_str(), "tmpfs", MS_REMOUNT, "size=64m") == 0);
    });
  });
  EXPECT_EQ(child.wait() % 20, 0);
  EXPECT_EQ(integrity(disk + "/a.db"), "ok");
  ::umount2(disk.c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace ae::store
