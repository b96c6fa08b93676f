#include "store/postgres/reader.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace ae::store::postgres {
namespace {

// How often a listener without tasks reopens a lost connection.
constexpr int kRelistenMs = 500;

}  // namespace

Reader::Reader(Session session, ListenOptions listening)
    : session_(std::move(session)), listen_options_(std::move(listening)) {
  wakeup_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  AE_CHECK(wakeup_fd_ >= 0, "no eventfd");
  listen();
  thread_ = std::thread([this] { run(); });
}

Reader::~Reader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  ::eventfd_write(wakeup_fd_, 1);
  thread_.join();
  ::close(wakeup_fd_);
}

void Reader::enqueue(ReadTask task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (tasks_.size() > 1) return;  // it is already notified
  }
  ::eventfd_write(wakeup_fd_, 1);
}

void Reader::run() {
  for (;;) {
    ReadTask task;
    {
      const std::lock_guard lock(mutex_);
      if (!tasks_.empty()) {
        task = std::move(tasks_.front());
        tasks_.pop_front();
      } else if (stop_) {
        return;
      }
    }
    if (task) {
      task(session_);
      continue;
    }
    listen();
    wait();
  }
}

// Listens again on every new connection. Hints in between are lost, which `on_hint` reports.
void Reader::listen() {
  if (listen_options_.channels.empty()) return;
  auto connection = session_.connection();
  if (!connection) return;
  if (listening_generation_ != session_.reconnects() + 1) {
    for (const std::string& channel : listen_options_.channels) {
      (*connection)->add_unprepared("LISTEN " + quoted_name(channel));
    }
    if (!(*connection)->run()) return session_.disconnect();
    if (std::exchange(listening_generation_, session_.reconnects() + 1) != 0)
      listen_options_.on_hint("claim", 0);
  }
  const auto on_notification = [&](std::string_view hint, int backend_pid) {
    if (backend_pid != (*connection)->backend_pid()) listen_options_.on_hint(hint, backend_pid);
  };
  if (!(*connection)->drain_notifications(on_notification)) session_.disconnect();
}

void Reader::wait() {
  const bool listens = !listen_options_.channels.empty();
  pollfd pollfds[] = {
      {.fd = wakeup_fd_, .events = POLLIN, .revents = 0},
      {.fd = session_.is_open() ? session_.socket() : -1, .events = POLLIN, .revents = 0}};
  const bool is_listening = listens && session_.is_open();
  ::poll(pollfds, is_listening ? 2 : 1, !listens || is_listening ? -1 : kRelistenMs);
  eventfd_t rung = 0;
  ::eventfd_read(wakeup_fd_, &rung);
}

}  // namespace ae::store::postgres
