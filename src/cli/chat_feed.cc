#include "cli/chat_feed.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/error.h"
#include "json/json.h"

namespace ae::cli {
namespace {

constexpr auto kRetryAfter = std::chrono::milliseconds(200);

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
  [[maybe_unused]] const ssize_t written = ::write(pipe_[1], "", 1);
  return !is_over_;
}

// A stream that breaks off is followed again after its last event.
void ChatFeed::run() {
  while (!is_over_) {
    api::ApiRequest request;
    request.path = {"api", "jobs", job_, "events"};
    if (after_ > 0) request.query.emplace_back("after", std::to_string(after_));
    const auto end = client_->follow(request, [this](const auto& live) { return add(live); });
    if (!end || end->status != 200) std::this_thread::sleep_for(kRetryAfter);
    if (end && end->status == 204) return;  // the job has ended, and its last event was read
  }
}

}  // namespace ae::cli
