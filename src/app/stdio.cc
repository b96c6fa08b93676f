#include "app/stdio.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "json/json.h"
#include "mcp/lines.h"
#include "mcp/message.h"

namespace ae::app {
namespace {

constexpr std::size_t kReadAtOnce = 64 << 10;
constexpr Duration kRefusedFor = std::chrono::seconds(5);  // without anything being read

}  // namespace

// What the two threads share with the loop stands behind the mutex.
struct Stdio::Impl : std::enable_shared_from_this<Impl> {
  Impl(async::Loop& loop_in, api::Mcp& mcp_in, Options options_in)
      : loop(loop_in),
        mcp(mcp_in),
        options(std::move(options_in)),
        wake(::eventfd(0, EFD_CLOEXEC)) {}
  ~Impl() { ::close(wake); }

  // ---- the loop's

  void hear(std::vector<mcp::Line> lines) {
    for (mcp::Line& line : lines) {
      if (!line.too_long) {
        ask(std::move(line.text));
        continue;
      }
      say(mcp::error_response(
          {.code = mcp::kParseError,
           .message = "a message has at most " + std::to_string(mcp::kMessageMax) + " bytes"}));
    }
  }

  void ask(std::string text) {
    const auto value = mcp::parse_message(text);
    const Value id = value && value->find("method") != nullptr ? (*value)["id"] : Value();
    if (value && value->text("method") == "notifications/cancelled") {
      const auto open = gone.find(canonical((*value)["params"]["requestId"]));
      if (open != gone.end()) *open->second = true;
    }
    if (open_requests >= kStdioOpenMax && !id.is_null()) {
      return say(mcp::error_response(
          {.code = 429, .message = "64 requests are running; wait until one ends", .id = id}));
    }
    const std::string name = id.is_null() ? std::string() : canonical(id);
    const auto left = std::make_shared<bool>(false);
    if (!name.empty()) gone[name] = left;
    api::ApiRequest request;
    request.method = "POST";
    request.path = {"mcp"};
    request.body = std::move(text);
    request.by = options.by;
    request.mcp_revision = agreed;
    request.gone = left;
    request.note = [self = weak_from_this(), left](const Value& message) {
      const auto here = self.lock();
      if (here && !*left && !message.is_null()) here->say(message);
    };
    ++open_requests;
    mcp.answer(std::move(request),
               [self = shared_from_this(), name, left](api::ApiResponse answer) {
                 self->answered(name, left, answer.body);
               });
  }

  void answered(const std::string& name, const std::shared_ptr<bool>& left, const Value& body) {
    --open_requests;
    if (const auto open = gone.find(name); open != gone.end() && open->second == left) {
      gone.erase(open);
    }
    const Value& revision = body["result"]["protocolVersion"];
    if (revision.is_string() && !agreed) agreed = mcp::revision_from_text(revision.as_string());
    // Who has taken a request back hears nothing more of it.
    if (!body.is_null() && !*left) say(body);
    if (input_over && open_requests == 0) finish();
  }

  void say(const Value& message) {
    std::string line = canonical(message) + "\n";
    bool much = false;
    {
      const std::lock_guard lock(mutex);
      unread += line.size();
      much = unread > kStdioUnreadMax;
      if (!much) unwritten.push_back(std::move(line));
    }
    changed.notify_all();
    if (much) end(true);
  }

  void input_ended() {
    if (input_over) return;
    input_over = true;
    if (options.ending) options.ending();
    if (open_requests == 0) return finish();
    timer = loop.after(options.grace, [self = shared_from_this()] {
      self->timer.reset();
      self->end(false);
    });
  }

  // Everything is answered: once it is written, that is all.
  void finish() {
    {
      const std::lock_guard lock(mutex);
      last = true;
    }
    changed.notify_all();
  }

  void end(bool lost) {
    if (std::exchange(over, true)) return;
    if (timer) loop.forget(*std::exchange(timer, std::nullopt));
    options.ended(lost);
  }

  // ---- the reader's

  void read_all() {
    mcp::Lines lines;
    std::vector<char> buffer(kReadAtOnce);
    while (true) {
      pollfd ready[2] = {{.fd = options.in, .events = POLLIN, .revents = 0},
                         {.fd = wake, .events = POLLIN, .revents = 0}};
      if (::poll(ready, 2, -1) < 0 && errno != EINTR) break;
      if (ready[1].revents != 0) return;
      if (ready[0].revents == 0) continue;
      const ssize_t size = ::read(options.in, buffer.data(), buffer.size());
      if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (size <= 0) break;
      if (!hand_over(lines.take({buffer.data(), static_cast<std::size_t>(size)}))) return;
    }
    if (!hand_over(lines.end())) return;
    loop.post([self = shared_from_this()] { self->input_ended(); });
  }

  // Waits until the loop has taken them, so that no more is read than is worked on. False: we are to end.
  bool hand_over(std::vector<mcp::Line> heard) {
    if (heard.empty()) return true;
    {
      const std::lock_guard lock(mutex);
      taken = false;
    }
    loop.post([self = shared_from_this(), heard = std::move(heard)]() mutable {
      self->hear(std::move(heard));
      {
        const std::lock_guard lock(self->mutex);
        self->taken = true;
      }
      self->changed.notify_all();
    });
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return taken || stopping; });
    return !stopping;
  }

  // ---- the writer's

  void write_all() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return !unwritten.empty() || stopping || last; });
      if (unwritten.empty()) break;
      const std::string line = std::move(unwritten.front());
      unwritten.pop_front();
      lock.unlock();
      const bool written = write_line(line);
      lock.lock();
      unread -= line.size();
      if (written) continue;
      if (!stopping) loop.post([self = shared_from_this()] { self->end(true); });
      return;
    }
    if (!stopping) loop.post([self = shared_from_this()] { self->end(false); });
  }

  bool write_line(std::string_view line) {
    while (!line.empty()) {
      pollfd ready[2] = {{.fd = options.out, .events = POLLOUT, .revents = 0},
                         {.fd = wake, .events = POLLIN, .revents = 0}};
      // Told to end, we wait for a client that does not read no longer than this.
      const auto patience = std::chrono::ceil<std::chrono::milliseconds>(kRefusedFor).count();
      const bool told = stop_told.load();
      const int found = ::poll(ready, told ? 1 : 2, told ? static_cast<int>(patience) : -1);
      if (found < 0 && errno != EINTR) return false;
      if (found == 0 && told) return false;
      if (ready[1].revents != 0) stop_told = true;
      if (ready[0].revents == 0) continue;
      // A pipe that takes some takes this much at once without making us wait.
      const ssize_t size =
          ::write(options.out, line.data(), std::min<std::size_t>(line.size(), 4096));
      if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (size < 0) return false;
      line.remove_prefix(static_cast<std::size_t>(size));
    }
    return true;
  }

  async::Loop& loop;
  api::Mcp& mcp;
  const Options options;
  const int wake;  // readable: the threads are to end
  std::thread reader, writer;
  std::atomic<bool> stop_told = false;

  // the loop's
  std::optional<mcp::Revision> agreed;
  std::map<std::string, std::shared_ptr<bool>> gone;  // of open requests, by their ids
  std::size_t open_requests = 0;
  bool input_over = false, over = false;
  std::optional<async::TimerId> timer;

  std::mutex mutex;
  std::condition_variable changed;
  // behind it
  std::deque<std::string> unwritten;
  std::size_t unread = 0;  // bytes of them, and of the one that is being written
  bool taken = false;      // the loop has what was read
  bool last = false;       // nothing is said any more
  bool stopping = false;
};

Stdio::Stdio(async::Loop& loop, api::Mcp& mcp, Options options)
    : impl_(std::make_shared<Impl>(loop, mcp, std::move(options))) {}

Stdio::~Stdio() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->changed.notify_all();
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t told = ::write(impl_->wake, &one, sizeof one);
  if (impl_->reader.joinable()) impl_->reader.join();
  if (impl_->writer.joinable()) impl_->writer.join();
  impl_->over = true;  // what is still to be answered is told nobody
  if (impl_->timer) impl_->loop.forget(*impl_->timer);
}

void Stdio::begin() {
  impl_->reader = std::thread([impl = impl_.get()] { impl->read_all(); });
  impl_->writer = std::thread([impl = impl_.get()] { impl->write_all(); });
}

}  // namespace ae::app
