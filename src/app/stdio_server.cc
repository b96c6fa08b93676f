#include "app/stdio_server.h"

#include <fcntl.h>
#include <fmt/core.h>
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
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "json/json.h"
#include "log/field_names.h"
#include "mcp/protocol/message.h"
#include "mcp/server/line_reader.h"

namespace ae::app {
namespace {

constexpr std::size_t kReadAtOnce = 64 << 10;
constexpr Duration kWriteStallMax = std::chrono::seconds(5);  // without progress of the client

}  // namespace

// State shared with the two threads is guarded by `mutex`.
struct StdioServer::Impl : std::enable_shared_from_this<Impl> {
  Impl(async::Loop& loop_in, api::Mcp& mcp_in, Options options_in)
      : loop(loop_in),
        mcp(mcp_in),
        options(std::move(options_in)),
        wake(::eventfd(0, EFD_CLOEXEC)) {}
  ~Impl() { ::close(wake); }

  // ---- on the loop

  void handle_lines(std::vector<mcp::Line> lines) {
    for (mcp::Line& line : lines) {
      if (!line.too_long) {
        handle_message(std::move(line.text));
        continue;
      }
      send_message(mcp::error_response(
          {.code = mcp::kParseError,
           .message = fmt::format("a message has at most {} bytes", mcp::kMessageMax)}));
    }
  }

  void handle_message(std::string text) {
    const auto value = mcp::parse_message(text);
    const Value id = value && value->find("method") != nullptr ? (*value)["id"] : Value();
    if (value && value->text("method") == "notifications/cancelled") {
      const auto open = cancel_flags.find(canonical((*value)["params"]["requestId"]));
      if (open != cancel_flags.end()) open->second.request_stop();
    }
    if (open_requests >= kStdioOpenMax && !id.is_null()) {
      return send_message(mcp::error_response(
          {.code = 429, .message = "64 requests are running; wait until one ends", .id = id}));
    }
    const std::string name = id.is_null() ? std::string() : canonical(id);
    const std::stop_source cancelled;
    if (!name.empty()) cancel_flags.insert_or_assign(name, cancelled);
    api::ApiRequest request;
    request.method = "POST";
    request.path = {"mcp"};
    request.body = std::move(text);
    request.by = options.by;
    request.mcp_revision = revision_agreed;
    request.disconnected = cancelled.get_token();
    request.on_notification = [self = weak_from_this(), cancelled](const Value& message) {
      const auto here = self.lock();
      if (here && !cancelled.stop_requested() && !message.is_null()) here->send_message(message);
    };
    ++open_requests;
    mcp.answer(std::move(request),
               [self = shared_from_this(), name, cancelled](const api::ApiResponse& answer) {
                 self->on_response(name, cancelled, answer.body);
               });
  }

  void on_response(const std::string& name, const std::stop_source& cancelled, const Value& body) {
    --open_requests;
    if (const auto open = cancel_flags.find(name);
        open != cancel_flags.end() && open->second == cancelled) {
      cancel_flags.erase(open);
    }
    const Value& revision = body[field::result]["protocolVersion"];
    if (revision.is_string() && !revision_agreed)
      revision_agreed = mcp::revision_from_text(revision.as_string());
    // The client gets no response to a cancelled request.
    if (!body.is_null() && !cancelled.stop_requested()) send_message(body);
    if (is_input_closed && open_requests == 0) finish();
  }

  void send_message(const Value& message) {
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
    if (is_input_closed) return;
    is_input_closed = true;
    if (options.on_input_end) options.on_input_end();
    if (open_requests == 0) return finish();
    timer = loop.after(options.grace, [self = shared_from_this()] {
      self->timer.reset();
      self->end(false);
    });
  }

  // Everything is answered: ends when it is written.
  void finish() {
    {
      const std::lock_guard lock(mutex);
      last = true;
    }
    changed.notify_all();
  }

  void end(bool lost) {
    if (std::exchange(is_over, true)) return;
    if (timer) loop.cancel(*std::exchange(timer, std::nullopt));
    options.on_ended(lost);
  }

  // ---- on the reader thread

  void read_all() {
    mcp::LineReader lines;
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
      if (!deliver_lines(lines.feed({buffer.data(), static_cast<std::size_t>(size)}))) return;
    }
    if (!deliver_lines(lines.end())) return;
    loop.post([self = shared_from_this()] { self->input_ended(); });
  }

  // Waits until the loop has taken the lines, so that reading does not outrun processing. False:
  // shutting down.
  bool deliver_lines(std::vector<mcp::Line> lines_read) {
    if (lines_read.empty()) return true;
    {
      const std::lock_guard lock(mutex);
      are_lines_taken = false;
    }
    loop.post([self = shared_from_this(), lines_read = std::move(lines_read)]() mutable {
      self->handle_lines(std::move(lines_read));
      {
        const std::lock_guard lock(self->mutex);
        self->are_lines_taken = true;
      }
      self->changed.notify_all();
    });
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return are_lines_taken || stopping; });
    return !stopping;
  }

  // ---- on the writer thread

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
      // During shutdown, wait at most this long for a client that does not read.
      const auto wait_ms = std::chrono::ceil<std::chrono::milliseconds>(kWriteStallMax).count();
      const bool is_stopping = stop_requested.load();
      const int found =
          ::poll(ready, is_stopping ? 1 : 2, is_stopping ? static_cast<int>(wait_ms) : -1);
      if (found < 0 && errno != EINTR) return false;
      if (found == 0 && is_stopping) return false;
      if (ready[1].revents != 0) stop_requested = true;
      if (ready[0].revents == 0) continue;
      // A writable pipe accepts this many bytes without blocking.
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
  const int wake;  // readable: the threads must end
  std::thread reader, writer;
  std::atomic<bool> stop_requested = false;

  // used on the loop only
  std::optional<mcp::Revision> revision_agreed;
  std::map<std::string, std::stop_source> cancel_flags;  // of open requests, by their ids
  std::size_t open_requests = 0;
  bool is_input_closed = false, is_over = false;
  std::optional<async::TimerId> timer;

  std::mutex mutex;
  std::condition_variable changed;
  // guarded by mutex
  std::deque<std::string> unwritten;
  std::size_t unread = 0;        // bytes, including the message being written
  bool are_lines_taken = false;  // the loop has taken the lines
  bool last = false;             // no more messages will be added
  bool stopping = false;
};

StdioServer::StdioServer(async::Loop& loop, api::Mcp& mcp, Options options)
    : impl_(std::make_shared<Impl>(loop, mcp, std::move(options))) {}

StdioServer::~StdioServer() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->changed.notify_all();
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t is_stopping = ::write(impl_->wake, &one, sizeof one);
  if (impl_->reader.joinable()) impl_->reader.join();
  if (impl_->writer.joinable()) impl_->writer.join();
  impl_->is_over = true;  // pending responses are dropped
  if (impl_->timer) impl_->loop.cancel(*impl_->timer);
}

void StdioServer::begin() {
  impl_->reader = std::thread([impl = impl_.get()] { impl->read_all(); });
  impl_->writer = std::thread([impl = impl_.get()] { impl->write_all(); });
}

}  // namespace ae::app
