#include "cli/chat_host.h"

#include <fmt/core.h>

#include <utility>

namespace ae::cli {

Result<std::unique_ptr<ChatHost>> ChatHost::start(app::InstanceOptions options, Duration grace) {
  std::unique_ptr<ChatHost> host(new ChatHost(grace));
  std::promise<Result<std::string>> opened;
  auto socket = opened.get_future();
  options.observer = host.get();
  host->thread_ = std::thread(
      [host = host.get(), options = std::move(options), opened = std::move(opened)]() mutable {
        host->run(std::move(options), std::move(opened));
      });
  AE_ASSIGN(host->socket_, socket.get());
  return host;
}

void ChatHost::run(app::InstanceOptions options, std::promise<Result<std::string>> opened) {
  auto instance = app::Instance::open(std::move(options));
  if (!instance) return opened.set_value(std::unexpected(std::move(instance).error()));
  instance_ = *std::move(instance);
  if (auto listens = instance_->listen(); !listens) add_warning({}, listens.error().message);
  auto socket = instance_->listen_for_workers();
  const bool listens = socket.has_value();
  if (listens) instance_->runtime().start();
  opened.set_value(std::move(socket));
  while (listens && !is_over_) instance_->loop().run();
  instance_.reset();
}

void ChatHost::stop() {
  instance_->stop_listening();
  instance_->runtime().stop(grace_, [this] {
    instance_->close_workers();
    is_over_ = true;
    instance_->loop().stop();
  });
}

ChatHost::~ChatHost() {
  if (!thread_.joinable()) return;
  if (!socket_.empty()) instance_->loop().post([this] { stop(); });
  thread_.join();
}

std::vector<std::string> ChatHost::take_warnings() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(warnings_, {});
}

void ChatHost::add_warning(const JobId& job, const std::string& what) {
  const std::scoped_lock lock(mutex_);
  warnings_.push_back(job.empty() ? what : fmt::format("job {}: {}", job.text, what));
}

void ChatHost::on_released(const JobId& job, const std::optional<Error>& problem) {
  if (problem) add_warning(job, problem->message);
}

void ChatHost::on_store_health(const std::optional<Error>& out) {
  add_warning({}, out ? fmt::format("the store is unavailable; retrying: {}", out->message)
                      : "the store is available again");
}

}  // namespace ae::cli
