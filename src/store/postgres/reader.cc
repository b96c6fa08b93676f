#include "store/postgres/reader.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace ae::store::postgres {
namespace {

// How often a lost connection that only listens is opened again.
constexpr int kRelistenMs = 500;

}  // namespace

Reader::Reader(Session session, Listening listening)
    : session_(std::move(session)), listening_(std::move(listening)) {
  bell_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  AE_CHECK(bell_ >= 0, "no eventfd");
  listen();
  thread_ = std::thread([this] { run(); });
}

Reader::~Reader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  ::eventfd_write(bell_, 1);
  thread_.join();
  ::close(bell_);
}

void Reader::ask(Question question) {
  {
    const std::lock_guard lock(mutex_);
    questions_.push_back(std::move(question));
    if (questions_.size() > 1) return;  // it has been rung for
  }
  ::eventfd_write(bell_, 1);
}

void Reader::run() {
  for (;;) {
    Question question;
    {
      const std::lock_guard lock(mutex_);
      if (!questions_.empty()) {
        question = std::move(questions_.front());
        questions_.pop_front();
      } else if (stop_) {
        return;
      }
    }
    if (question) {
      question(session_);
      continue;
    }
    listen();
    wait();
  }
}

// On every new connection anew; what was said in between is lost, and said so.
void Reader::listen() {
  if (listening_.channels.empty()) return;
  auto connection = session_.connection();
  if (!connection) return;
  if (listened_at_ != session_.reopened() + 1) {
    for (const std::string& channel : listening_.channels) {
      (*connection)->add_once("LISTEN " + quoted_name(channel));
    }
    if (!(*connection)->run()) return session_.drop();
    if (std::exchange(listened_at_, session_.reopened() + 1) != 0) listening_.heard("claim", 0);
  }
  const auto of_others = [&](std::string_view hint, int backend) {
    if (backend != (*connection)->backend()) listening_.heard(hint, backend);
  };
  if (!(*connection)->take_notifications(of_others)) session_.drop();
}

void Reader::wait() {
  const bool listens = !listening_.channels.empty();
  pollfd wishes[] = {
      {.fd = bell_, .events = POLLIN, .revents = 0},
      {.fd = session_.is_open() ? session_.socket() : -1, .events = POLLIN, .revents = 0}};
  const bool heard_of = listens && session_.is_open();
  ::poll(wishes, heard_of ? 2 : 1, !listens || heard_of ? -1 : kRelistenMs);
  eventfd_t rung = 0;
  ::eventfd_read(bell_, &rung);
}

}  // namespace ae::store::postgres
