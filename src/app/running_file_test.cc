// Tests of RunningFile, with a second process that holds the lock.
#include "app/running_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "testing/test.h"

namespace ae::app {
namespace {

using namespace std::chrono_literals;

// A file that another process locks for `time`, at most until the destructor.
class LockedFile {
 public:
  explicit LockedFile(std::chrono::microseconds time) {
    char folder[] = "/tmp/aetheris-running-XXXXXX";
    AE_CHECK(::mkdtemp(folder) != nullptr);
    folder_ = folder;
    const int fd = ::open(path().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    AE_CHECK(fd >= 0 && ::flock(fd, LOCK_EX) == 0);
    child_ = ::fork();
    if (child_ == 0) {
      ::usleep(static_cast<useconds_t>(time.count()));
      ::_exit(0);
    }
    ::close(fd);  // the child's copy keeps the lock
  }
  ~LockedFile() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    std::filesystem::remove_all(folder_);
  }
  std::string path() const { return folder_ + "/store.db.running"; }

 private:
  std::string folder_;
  pid_t child_ = -1;
};

AE_TEST("running file/opening waits until another process releases the lock") {
  const LockedFile locked_file(300ms);
  auto opened = RunningFile::open(locked_file.path(), 30s);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_FALSE((*opened)->bytes().empty());
}

AE_TEST("running file/a lock that is not released is reported at the timeout") {
  const LockedFile locked_file(60s);
  auto opened = RunningFile::open(locked_file.path(), 20ms);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::unavailable);
  EXPECT_NE(opened.error().message.find("cannot lock " + locked_file.path()), std::string::npos);
}

}  // namespace
}  // namespace ae::app
