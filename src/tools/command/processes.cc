// The thread that listens to supervisors and to what their programs print.
#include "tools/command/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "tools/command/left_over.h"
#include "tools/command/proc.h"
#include "tools/command/supervisor.h"
#include "tools/tool.h"

namespace ae::tools {
namespace {

constexpr Duration kSupervisorPatience =
    std::chrono::seconds(8);  // more than it takes to give up itself
constexpr int kLookMs =
    1000;  // poll's clock stands still in suspend, so time is looked at this often
constexpr Duration kOrphanReapedAfter = std::chrono::seconds(1);
constexpr std::size_t kReadMax = 256u << 10;  // bytes of one stream in one turn
constexpr int kWaitingMs = 10;  // from one look to the next whether what was said has been heard

// CLOCK_MONOTONIC stands still in suspend, as the program does: a machine that sleeps is no silence.
Duration awake_now() {
  return std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch());
}

// A file descriptor that closes itself.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Fd& operator=(Fd&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  ~Fd() { close(); }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// The same file above the numbers that a supervisor's own files get, so that none covers another.
Fd lifted(Fd fd) {
  return fd.ok() && fd.get() < 10 ? Fd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 10)) : std::move(fd);
}

// A sealed file in memory that holds `bytes`, at its beginning.
Fd file_of(const char* name, std::string_view bytes) {
  Fd fd = lifted(Fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  while (fd.ok() && !bytes.empty()) {
    const ssize_t n = ::write(fd.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Fd();
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  if (fd.ok() && (::lseek(fd.get(), 0, SEEK_SET) != 0 ||
                  ::fcntl(fd.get(), F_ADD_SEALS,
                          F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0)) {
    return Fd();
  }
  return fd;
}

struct Pair {
  Fd ours, theirs;
  bool ok() const { return ours.ok() && theirs.ok(); }
};

Pair pipe_to_us() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return {};
  Pair pair{Fd(fds[0]), lifted(Fd(fds[1]))};
  if (::fcntl(fds[0], F_SETFL, O_NONBLOCK) != 0) return {};
  return pair;
}

Pair pipe_from_us() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return {};
  Pair pair{Fd(fds[1]), lifted(Fd(fds[0]))};
  if (::fcntl(fds[1], F_SETFL, O_NONBLOCK) != 0) return {};
  return pair;
}

Pair socket_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) return {};
  return {Fd(fds[0]), lifted(Fd(fds[1]))};
}

// What came on one stream.
class Output {
 public:
  explicit Output(std::size_t keep) : keep_(keep) {}
  void add(std::string_view bytes) {
    size_ += bytes.size();
    if (!hash_ && size_ <= keep_) {
      kept_ += bytes;
      return;
    }
    if (!hash_) {
      hash_ = std::make_unique<Sha256>();
      hash_->add(kept_);
      kept_ += bytes.substr(0, keep_ - kept_.size());
    }
    hash_->add(bytes);
  }
  void into(Ended& ended) {
    ended.output = std::move(kept_);
    ended.output_size = size_;
    if (hash_) ended.output_hash = hash_->finish();
  }

 private:
  std::size_t keep_, size_ = 0;
  std::string kept_;
  std::unique_ptr<Sha256> hash_;  // from the first byte beyond the limit on
};

// The end of what came on the other.
class Tail {
 public:
  void add(std::string_view bytes) {
    text_ += bytes;
    if (text_.size() > 4 * kErrorsKept) trim();
  }
  void into(Ended& ended) {
    trim();
    ended.errors = std::move(text_);
    ended.errors_cut = cut_;
  }

 private:
  void trim() {
    if (text_.size() <= kErrorsKept) return;
    text_.erase(0, text_.size() - kErrorsKept);
    cut_ = true;
  }
  std::string text_;
  bool cut_ = false;
};

// The lines that came on the third: the newest whole one, for whoever fetches it. A line that is too long is none.
class ReportLines {
 public:
  void add(std::string_view bytes) {
    while (!bytes.empty()) {
      const std::size_t end = std::min(bytes.find('\n'), bytes.size());
      const bool fits = part_.size() + end <= kProgressMax;
      if (fits) part_ += bytes.substr(0, end);
      too_long_ = too_long_ || !fits;
      if (end == bytes.size()) return;
      bytes.remove_prefix(end + 1);
      if (!too_long_ && !part_.empty()) newest_ = std::exchange(part_, {});
      part_.clear();
      too_long_ = false;
    }
  }
  std::optional<std::string> take() { return std::exchange(newest_, std::nullopt); }

 private:
  std::string part_;
  bool too_long_ = false;
  std::optional<std::string> newest_;
};

// The newest report on its way to the loop. Shared with the task that fetches it.
struct Mail {
  std::mutex mutex;
  std::optional<std::string> line;  // guarded by mutex; empty: nobody is on the way
};

// What one that talks was told and said.
struct Talk {
  std::function<void(std::string)> heard;
  Fd input;
  std::string told;  // not written yet, from `written` on
  std::size_t written = 0;
  // Bytes on their way to the loop. Shared with the tasks that carry them.
  std::shared_ptr<std::atomic<std::size_t>> unheard = std::make_shared<std::atomic<std::size_t>>(0);
  async::Loop* loop = nullptr;

  bool waits() const { return heard && *unheard > kHeardMax; }
  void add(std::string_view bytes) {
    *unheard += bytes.size();
    loop->post([heard = heard, unheard = unheard, text = std::string(bytes)]() mutable {
      *unheard -= text.size();
      heard(std::move(text));
    });
  }
};

struct Child {
  pid_t supervisor = -1;
  Fd control, output, errors, reports;
  Talk talk;
  ReportLines lines;
  Said said;
  std::shared_ptr<Mail> mail = std::make_shared<Mail>();
  Duration heartbeat{};
  Duration heard{};  // awake time: the last sign of life
  Output printed{0};
  Tail complained;
  async::Done<Ready> ready;
  async::Done<Ended> ended;  // empty: answered, only its supervisor is still to be reaped
  std::optional<Ready> group;
  std::string mark;
  bool told_to_go = false;
  Killed killed = Killed::no;
  Duration time_max{};
  Duration began{};
  std::optional<Duration> give_up;  // when to stop waiting for the supervisor
};

}  // namespace

class Processes::Listener {
 public:
  Listener(async::Loop& loop, std::string supervisor, std::size_t descriptors)
      : loop_(loop),
        supervisor_(std::move(supervisor)),
        descriptors_(descriptors == 0 ? "" : std::to_string(descriptors)),
        wake_(::eventfd(0, EFD_CLOEXEC)) {
    AE_CHECK(wake_.ok());
  }
  ~Listener() {
    if (!thread_.joinable()) return;
    tell([](Listener& l) {
      l.stopping_ = true;
      for (auto& [id, child] : l.children_) {
        l.kill(child);
        child.give_up = boot_now() + kSupervisorPatience;
      }
    });
    thread_.join();
  }

  // Runs `task` on the listener's thread, which begins with the first one.
  void tell(std::move_only_function<void(Listener&)> task) {
    if (!thread_.joinable()) thread_ = std::thread([this] { listen(); });
    {
      const std::scoped_lock lock(mutex_);
      told_.push_back(std::move(task));
    }
    const std::uint64_t one = 1;
    static_cast<void>(!::write(wake_.get(), &one, sizeof one));
  }

  void start(Id id, Launch launch, async::Done<Ready> ready, Said said, async::Done<Ended> ended);
  void go(Id id);
  void kill(Id id);
  void stop(Id id);
  void write(Id id, std::string bytes);

 private:
  void write(Child& child);
  void hear_output(Child& child);
  void hear_reports(Child& child);
  void deliver(Child& child);
  bool is_silent(Child& child);
  int wait_ms() const;
  int spawn(const Launch& launch, Child& child);
  void kill(Child& child, Killed why = Killed::ordered);
  void listen();
  void do_as_told();
  void hear(Child& child);
  void hear_report(Child& child, const Report& report);
  void lose(Child& child);
  void look_at_clock(Child& child);
  void answer(Child& child, Ended ended);
  template <class Sink>
  void drain(Fd& fd, Sink& sink);

  async::Loop& loop_;
  const std::string supervisor_;
  const std::string descriptors_;  // as text; "" = as many as we
  Fd wake_;
  std::mutex mutex_;
  std::vector<std::move_only_function<void(Listener&)>> told_;  // guarded by mutex_

  void reap_orphans();
  void end_left_behind(const Child& child);

  // The thread's own.
  bool stopping_ = false;
  bool adopts_ = false;
  std::map<pid_t, Duration> ended_orphans_;  // ended children of ours that are not supervisors
  std::map<Id, Child> children_;
  std::array<char, 64u << 10> buffer_{};
  std::thread thread_;
};

void Processes::Listener::start(Id id, Launch launch, async::Done<Ready> ready, Said said,
                                async::Done<Ended> ended) {
  Child child;
  child.said = std::move(said);
  child.heartbeat = launch.heartbeat;
  child.ended = std::move(ended);
  child.ready = std::move(ready);
  child.mark = launch.mark;
  child.printed = Output(launch.output_max);
  child.time_max = launch.time_max;
  child.talk.heard = std::move(launch.heard);
  child.talk.loop = &loop_;
  if (!std::exchange(adopts_, true)) adopt_orphans();
  reap_orphans();
  const int error = stopping_                           ? ECANCELED
                    : children_.size() >= kProcessesMax ? EAGAIN
                                                        : spawn(launch, child);
  ::explicit_bzero(launch.order.data(), launch.order.size());
  if (error != 0) {
    return answer(child, {.how = Ended::How::not_started, .value = error});
  }
  children_.emplace(id, std::move(child));
}

// 0, or an errno.
int Processes::Listener::spawn(const Launch& launch, Child& child) {
  Pair control = socket_pair(), output = pipe_to_us(), errors = pipe_to_us(),
       reports = pipe_to_us();
  Pair talk = child.talk.heard ? pipe_from_us() : Pair();
  const Fd input =
      child.talk.heard ? std::move(talk.theirs) : file_of("aetheris-stdin", launch.input);
  const Fd order = file_of("aetheris-order", launch.order);
  if (!control.ok() || !output.ok() || !errors.ok() || !reports.ok() || !input.ok() ||
      !order.ok()) {
    return errno != 0 ? errno : EIO;
  }

  posix_spawn_file_actions_t files;
  posix_spawnattr_t how;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&how);
  const int theirs[] = {input.get(),          output.theirs.get(), errors.theirs.get(),
                        control.theirs.get(), order.get(),         reports.theirs.get()};
  constexpr int kFiles = 6;
  for (int fd = 0; fd < kFiles; ++fd) ::posix_spawn_file_actions_adddup2(&files, theirs[fd], fd);
  ::posix_spawn_file_actions_addclosefrom_np(&files, kFiles);
  sigset_t all, none;
  ::sigfillset(&all);
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigdefault(&how, &all);
  ::posix_spawnattr_setsigmask(&how, &none);
  ::posix_spawnattr_setflags(&how,
                             POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
  std::string name = "aetheris", argument(kSuperviseArgument), about = launch.invocation.text;
  std::string descriptors = descriptors_;
  char* argv[] = {name.data(), argument.data(), about.data(),
                  descriptors.empty() ? nullptr : descriptors.data(), nullptr};
  char* environment[] = {nullptr};
  const int error =
      ::posix_spawn(&child.supervisor, supervisor_.c_str(), &files, &how, argv, environment);
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&how);
  if (error == 0) {
    child.control = std::move(control.ours);
    child.output = std::move(output.ours);
    child.errors = std::move(errors.ours);
    child.reports = std::move(reports.ours);
    child.talk.input = std::move(talk.ours);
  }
  return error;
}

void Processes::Listener::go(Id id) {
  const auto found = children_.find(id);
  if (found == children_.end()) return;
  Child& child = found->second;
  if (!child.ended || child.killed != Killed::no) return;
  child.began = boot_now();
  child.heard = awake_now();
  child.give_up = child.began + child.time_max + kSupervisorPatience;
  const char byte = static_cast<char>(Command::go);
  // When this cannot be sent, the supervisor is gone and has started nothing.
  child.told_to_go = ::send(child.control.get(), &byte, 1, MSG_NOSIGNAL) == 1;
}

void Processes::Listener::write(Id id, std::string bytes) {
  const auto found = children_.find(id);
  if (found == children_.end() || !found->second.talk.input.ok()) return;
  Talk& talk = found->second.talk;
  if (talk.told.size() - talk.written + bytes.size() > kToldMax) return kill(found->second);
  talk.told += bytes;
  write(found->second);
}

// As much as it takes now. Who does not read any more is about to end, and its end is what is told.
void Processes::Listener::write(Child& child) {
  Talk& talk = child.talk;
  while (talk.input.ok() && talk.written < talk.told.size()) {
    const ssize_t n =
        ::write(talk.input.get(), talk.told.data() + talk.written, talk.told.size() - talk.written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) return talk.input.close();
    talk.written += static_cast<std::size_t>(n);
  }
  if (talk.written == talk.told.size() || talk.written > (1u << 20)) {
    talk.told.erase(0, std::exchange(talk.written, 0));
  }
}

void Processes::Listener::hear_output(Child& child) {
  if (!child.talk.heard) return drain(child.output, child.printed);
  drain(child.output, child.talk);
  if (!child.output.ok()) kill(child);
}

void Processes::Listener::kill(Id id) {
  if (const auto found = children_.find(id); found != children_.end()) kill(found->second);
}

// It may still be killed: `killed` stays as it is. REQUIRES: a grace below kSupervisorPatience.
void Processes::Listener::stop(Id id) {
  const auto found = children_.find(id);
  if (found == children_.end()) return;
  Child& child = found->second;
  if (!child.told_to_go) return kill(child);
  child.give_up = boot_now() + kSupervisorPatience;
  const char byte = static_cast<char>(Command::stop);
  ::send(child.control.get(), &byte, 1, MSG_NOSIGNAL);
}

void Processes::Listener::kill(Child& child, Killed why) {
  if (!child.ended || child.killed != Killed::no) return;
  child.killed = why;
  child.give_up = boot_now() + kSupervisorPatience;
  const char byte = static_cast<char>(Command::kill);
  ::send(child.control.get(), &byte, 1, MSG_NOSIGNAL);
}

void Processes::Listener::listen() {
  // A write to one that has ended is told by its result.
  sigset_t broken_pipe;
  ::sigemptyset(&broken_pipe);
  ::sigaddset(&broken_pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  std::vector<pollfd> fds;
  while (!stopping_ || !children_.empty()) {
    fds.assign(1, {wake_.get(), POLLIN, 0});
    for (auto& [id, child] : children_) {
      for (const Fd* fd : {&child.control, &child.output, &child.errors, &child.reports}) {
        const bool waits = fd == &child.output && child.talk.waits();
        fds.push_back({waits ? -1 : fd->get(), POLLIN, 0});
      }
      fds.push_back({child.talk.told.empty() ? -1 : child.talk.input.get(), POLLOUT, 0});
    }
    if (::poll(fds.data(), fds.size(), wait_ms()) < 0) continue;
    std::size_t at = 1;
    for (auto it = children_.begin(); it != children_.end();) {
      Child& child = it->second;
      const bool said = fds[at].revents != 0;
      if (fds[at + 1].revents != 0) hear_output(child);
      if (fds[at + 2].revents != 0) drain(child.errors, child.complained);
      if (fds[at + 3].revents != 0) hear_reports(child);
      if (fds[at + 4].revents != 0) write(child);
      at += 5;
      if (said) hear(child);
      look_at_clock(child);
      it = child.control.ok() ? std::next(it) : children_.erase(it);
    }
    if (fds[0].revents != 0) do_as_told();
  }
}

void Processes::Listener::do_as_told() {
  std::uint64_t count = 0;
  static_cast<void>(!::read(wake_.get(), &count, sizeof count));
  std::vector<std::move_only_function<void(Listener&)>> told;
  {
    const std::scoped_lock lock(mutex_);
    told.swap(told_);
  }
  for (auto& task : told) task(*this);
}

// Reads what is there; closes at the end of the stream. Bounded, so that one that floods lets the others speak.
template <class Sink>
void Processes::Listener::drain(Fd& fd, Sink& sink) {
  for (std::size_t taken = 0; fd.ok() && taken < kReadMax;) {
    const ssize_t n = ::read(fd.get(), buffer_.data(), buffer_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return fd.close();
    sink.add(std::string_view(buffer_.data(), static_cast<std::size_t>(n)));
    taken += static_cast<std::size_t>(n);
  }
}

void Processes::Listener::hear_reports(Child& child) {
  drain(child.reports, child.lines);
  child.heard = awake_now();
  deliver(child);
}

void Processes::Listener::deliver(Child& child) {
  auto line = child.lines.take();
  if (!line || !child.ended || !child.told_to_go) return;
  {
    const std::scoped_lock lock(child.mail->mutex);
    const bool on_the_way = child.mail->line.has_value();
    child.mail->line = std::move(*line);
    if (on_the_way) return;
  }
  loop_.post([said = child.said, mail = child.mail] {
    std::optional<std::string> newest;
    {
      const std::scoped_lock lock(mail->mutex);
      newest.swap(mail->line);
    }
    if (newest) said(*std::move(newest));
  });
}

// Not before what lies in its channel was looked at: it may be we who could not listen.
bool Processes::Listener::is_silent(Child& child) {
  if (child.heartbeat.count() == 0 || !child.told_to_go || !child.ended ||
      child.killed != Killed::no || awake_now() - child.heard < child.heartbeat) {
    return false;
  }
  pollfd there{child.reports.get(), POLLIN, 0};
  if (::poll(&there, 1, 0) == 1 && (there.revents & POLLIN) != 0) {
    hear_reports(child);
    return false;
  }
  return true;
}

// Until something is to be looked at.
int Processes::Listener::wait_ms() const {
  if (children_.empty()) return -1;
  std::int64_t wait = kLookMs;
  for (const auto& [id, child] : children_) {
    if (child.talk.waits()) wait = std::min<std::int64_t>(wait, kWaitingMs);
    if (child.heartbeat.count() == 0 || !child.told_to_go || child.killed != Killed::no) continue;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(child.heard + child.heartbeat - awake_now());
    wait = std::clamp<std::int64_t>(left.count(), 0, wait);
  }
  return static_cast<int>(wait);
}

void Processes::Listener::hear(Child& child) {
  Report report;
  const ssize_t n = ::recv(child.control.get(), &report, sizeof report, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n == sizeof report) return hear_report(child, report);
  lose(child);
}

void Processes::Listener::hear_report(Child& child, const Report& report) {
  if (!child.ended) return;
  if (report.kind == ReportKind::ready) {
    child.group = Ready{report.value, report.start};
    if (child.killed == Killed::no) {
      loop_.post(
          [ready = std::move(child.ready), group = *child.group]() mutable { ready(group); });
    }
    return;
  }
  Ended ended{.value = report.value,
              .stage = report.stage,
              .killed = report.killed,
              .stuck = report.stuck != 0};
  if (child.killed == Killed::silent && report.killed == Killed::ordered) {
    ended.killed = Killed::silent;
  }
  switch (report.kind) {
    case ReportKind::late:
      ended.how = Ended::How::late;
      break;
    case ReportKind::not_started:
      ended.how = Ended::How::not_started;
      break;
    case ReportKind::exited:
      ended.how = Ended::How::exited;
      break;
    default:
      ended.how = Ended::How::signalled;
      break;
  }
  answer(child, std::move(ended));
}

// The supervisor is gone. After its report that is how it should be; before, somebody killed it.
void Processes::Listener::lose(Child& child) {
  child.control.close();
  ::kill(child.supervisor, SIGKILL);  // not reaped yet, so this is nobody else; it may be stopped
  while (::waitpid(child.supervisor, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (!child.ended) return;
  if (child.group) {
    kill_left_over(in_flight_note(child.group->group, child.group->start, child.mark));
    end_left_behind(child);
  }
  if (!child.told_to_go) {
    return answer(child, {.how = Ended::How::not_started, .value = ECHILD});
  }
  answer(child, {.how = Ended::How::lost, .killed = child.killed});
}

// Its orphans are ours now, also those that have neither its group nor its mark.
void Processes::Listener::end_left_behind(const Child& child) {
  std::vector<pid_t> supervisors;
  supervisors.reserve(children_.size());
  for (const auto& [id, other] : children_) supervisors.push_back(other.supervisor);
  end_orphans(supervisors, child.group->start);
}

// As the parent of orphans (of a tool's, and of the programs that tell the operator) we have to let them go when they
// end. One that is still there after a second is not waited for by the code that started it.
void Processes::Listener::reap_orphans() {
  siginfo_t one{};
  if (::waitid(P_ALL, 0, &one, WEXITED | WNOHANG | WNOWAIT) != 0 || one.si_pid == 0) {
    return ended_orphans_.clear();
  }
  std::map<pid_t, Duration> still;
  for (const ProcessEntry& child : all_processes()) {
    if (child.parent != ::getpid() || !child.ended) continue;
    const bool is_ours = std::ranges::any_of(
        children_, [&](const auto& other) { return other.second.supervisor == child.pid; });
    if (is_ours) continue;
    const auto seen = ended_orphans_.find(child.pid);
    const Duration since = seen == ended_orphans_.end() ? boot_now() : seen->second;
    if (boot_now() - since < kOrphanReapedAfter) {
      still.emplace(child.pid, since);
    } else {
      ::waitpid(child.pid, nullptr, WNOHANG);
    }
  }
  ended_orphans_ = std::move(still);
}

void Processes::Listener::look_at_clock(Child& child) {
  if (child.control.ok() && is_silent(child)) kill(child, Killed::silent);
  if (!child.give_up || !child.control.ok() || boot_now() < *child.give_up) return;
  if (!child.ended) {
    // Stuck after SIGKILL. Its supervisor goes on trying, also without us.
    child.give_up.reset();
    if (stopping_) child.control.close();
    return;
  }
  if (child.killed == Killed::no) child.killed = Killed::timeout;
  lose(child);
}

void Processes::Listener::answer(Child& child, Ended ended) {
  // Nothing of it runs any more: what is in the pipes is all there is.
  for (int round = 0; child.output.ok() && round < 16; ++round) {
    if (child.talk.heard)
      drain(child.output, child.talk);
    else
      drain(child.output, child.printed);
  }
  child.talk.input.close();
  for (int round = 0; child.errors.ok() && round < 16; ++round)
    drain(child.errors, child.complained);
  for (int round = 0; child.reports.ok() && round < 16; ++round) drain(child.reports, child.lines);
  deliver(child);
  child.output.close();
  child.errors.close();
  child.reports.close();
  child.printed.into(ended);
  child.complained.into(ended);
  if (child.told_to_go) ended.took = boot_now() - child.began;
  loop_.post([done = std::exchange(child.ended, nullptr), e = std::move(ended)]() mutable {
    done(std::move(e));
  });
}

Processes::Processes(async::Loop& loop, std::string supervisor, std::size_t descriptors,
                     std::vector<std::string> closed)
    : closed_(std::move(closed)),
      listener_(std::make_unique<Listener>(loop, std::move(supervisor), descriptors)) {}

Processes::~Processes() = default;

Processes::Id Processes::start(Launch launch, async::Done<Ready> ready, Said said,
                               async::Done<Ended> ended) {
  const Id id = next_++;
  listener_->tell([id, launch = std::move(launch), ready = std::move(ready), said = std::move(said),
                   ended = std::move(ended)](Listener& l) mutable {
    l.start(id, std::move(launch), std::move(ready), std::move(said), std::move(ended));
  });
  return id;
}

void Processes::go(Id id) {
  listener_->tell([id](Listener& l) { l.go(id); });
}

void Processes::write(Id id, std::string bytes) {
  listener_->tell(
      [id, bytes = std::move(bytes)](Listener& l) mutable { l.write(id, std::move(bytes)); });
}

void Processes::kill(Id id) {
  listener_->tell([id](Listener& l) { l.kill(id); });
}

void Processes::stop(Id id) {
  listener_->tell([id](Listener& l) { l.stop(id); });
}

}  // namespace ae::tools
