#include "cli/chat_feed.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "api/problem.h"
#include "base/error.h"
#include "json/json.h"

namespace ae::cli {
namespace {

constexpr auto kRetryAfter = std::chrono::milliseconds(200);
constexpr int kTriesMax = 50;  // in a row: 10 s and more

}  // namespace

ChatFeed::ChatFeed(std::unique_ptr<app::ApiClient> client, std::string job, std::uint64_t after)
    : client_(std::move(client)), job_(std::move(job)), after_(after) {
  AE_CHECK(::pipe2(pipe_, O_CLOEXEC | O_NONBLOCK) == 0, "no pipe");
  thread_ = std::thread([this] { run(); });
}

ChatFeed::~ChatFeed() {
  is_over_ = true;
  client_->stop_following();
  thread_.join();
  ::close(pipe_[0]);
  ::close(pipe_[1]);
}

std::vector<ChatFeed::Item> ChatFeed::take() {
  const std::scoped_lock lock(mutex_);
  char drained[64];
  while (::read(pipe_[0], drained, sizeof drained) > 0) {
  }
  return std::exchange(items_, {});
}

bool ChatFeed::add(const app::ApiClient::LiveEvent& live) {
  auto value = parse_json(live.data, {.bytes_max = live.data.size(), .depth_max = 1000});
  if (!value) return !is_over_;  // a keep-alive
  const bool is_partial_output = live.name == "said";
  if (!is_partial_output) {
    if (!(*value)["seq"].is_integer()) return !is_over_;
    after_ = static_cast<std::uint64_t>((*value)["seq"].as_int());
  }
  const std::scoped_lock lock(mutex_);
  items_.push_back({is_partial_output, *std::move(value)});
  wake();
  return !is_over_;
}

void ChatFeed::wake() { [[maybe_unused]] const ssize_t written = ::write(pipe_[1], "", 1); }

void ChatFeed::fail(Error why) {
  const std::scoped_lock lock(mutex_);
  failure_ = std::move(why);
  wake();
}

std::optional<Error> ChatFeed::failure() {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

// A stream that breaks off is followed again after its last event.
void ChatFeed::run() {
  int failed = 0;  // in a row
  while (!is_over_) {
    api::ApiRequest request;
    request.path = {"api", "jobs", job_, "events"};
    if (after_ > 0) request.query.emplace_back("after", std::to_string(after_));
    const auto end = client_->follow(request, [this](const auto& live) { return add(live); });
    if (end && end->status == 204) return;  // the job has ended, and its last event was read
    if (end && end->status == 200) {
      failed = 0;
      continue;
    }
    if (is_over_) return;
    const Error why = end ? api::error_of_problem(end->body, end->status) : end.error();
    const bool is_refused = end && end->status < 500 && end->status != 429;
    if (is_refused || ++failed == kTriesMax) return fail(why);
    std::this_thread::sleep_for(kRetryAfter);
  }
}

}  // namespace ae::cli
