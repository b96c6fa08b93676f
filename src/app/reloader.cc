#include "app/reloader.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <utility>

#include "app/join.h"
#include "app/server_lock.h"
#include "core/hash.h"

namespace ae::app {
namespace {

// "" = there is no such file.
std::string stamp_of(const std::string& path) {
  struct stat found{};
  if (::stat(path.c_str(), &found) != 0) return "";
  const auto time = [](const timespec& at) {
    return std::to_string(at.tv_sec) + "." + std::to_string(at.tv_nsec);
  };
  return std::to_string(found.st_dev) + " " + std::to_string(found.st_ino) + " " +
         std::to_string(found.st_size) + " " + time(found.st_mtim) + " " + time(found.st_ctim);
}

std::optional<Hash> content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) return std::nullopt;
  return sha256(text);
}

}  // namespace

Reloader::Reloader(Site& site, Watched watched, const LoadedAgents& loaded,
                   std::function<void(const Report&)> report)
    : site_(site), watched_(std::move(watched)), report_(std::move(report)) {
  files_[loaded.path].content = sha256(loaded.text);
  for (const LoadedAgents& more : loaded.more) files_[more.path].content = sha256(more.text);
  std::vector<std::string> others;
  for (const std::string& path : watched_.files) others.push_back(lock_path_of(path));
  if (!watched_.policies.empty()) others.push_back(watched_.policies);
  for (const std::string& path : others) {
    files_[path].content = content_of(path).value_or(Hash());
  }
}

Reloader::~Reloader() {
  if (timer_) site_.loop().forget(*timer_);
}

void Reloader::look_later(Duration delay) {
  timer_ = site_.loop().after(delay, [this] {
    timer_.reset();
    look();
  });
}

void Reloader::look() {
  std::vector<std::string> edited;
  for (auto& [path, file] : files_) {
    std::string stamp = stamp_of(path);
    // Half a file is not read: it is as it was at the last look.
    const bool rests = !stamp.empty() && stamp == file.stamp;
    file.stamp = std::move(stamp);
    if (!rests || file.stamp == file.handled) continue;
    const auto content = content_of(path);
    if (!content || stamp_of(path) != file.stamp) continue;
    file.handled = file.stamp;
    if (*content == file.content) continue;
    file.content = *content;
    edited.push_back(path);
  }
  if (edited.empty()) return look_later(kLookEvery);
  reload(std::move(edited));
}

// Faults of the policies file are those of every file.
void Reloader::add(std::vector<agents::Fault>& all, std::vector<agents::Fault> more) {
  for (agents::Fault& fault : more) {
    const bool known = std::ranges::any_of(all, [&](const agents::Fault& one) {
      return one.file == fault.file && one.line == fault.line && one.column == fault.column &&
             one.message == fault.message;
    });
    if (!known) all.push_back(std::move(fault));
  }
}

void Reloader::reload(std::vector<std::string> edited) {
  Report report;
  report.files = std::move(edited);
  std::vector<std::pair<std::string, LoadedAgents>> files;
  for (const std::string& path : watched_.files) {
    auto one = load_agents(path, {.servers = AskServers::never, .policies = watched_.policies});
    if (!one) {
      report.error = std::move(one).error();
      return finish(std::move(report), Then::retry);
    }
    add(report.faults, std::move(one->faults));
    files.emplace_back(path, *std::move(one));
  }
  if (!report.faults.empty()) return finish(std::move(report), Then::look);
  report.warnings = warnings_of(files, watched_.policies);
  auto all = join(std::move(files));
  if (!all) {
    report.error = std::move(all).error();
    return finish(std::move(report), Then::look);
  }
  site_.reload(std::make_shared<const LoadedAgents>(*std::move(all)),
               [this, alive = std::weak_ptr(alive_), report = std::move(report)](
                   Result<std::vector<api::Api::AgentChange>> changes) mutable {
                 if (!alive.lock()) return;
                 if (changes) {
                   report.changes = *std::move(changes);
                 } else {
                   report.error = std::move(changes).error();
                 }
                 const bool passing = report.error && (report.error->code == Code::unavailable ||
                                                       report.error->code == Code::unknown_outcome);
                 finish(std::move(report), passing ? Then::retry : Then::look);
               });
}

void Reloader::finish(Report report, Then then) {
  // What fails again in the same way is reported once.
  const std::string error = report.error ? report.error->message : "";
  if (error.empty() || error != failed_) report_(report);
  failed_ = then == Then::retry ? error : "";
  if (then == Then::look) return look_later(kLookEvery);
  timer_ = site_.loop().after(kRetryAfter, [this, files = std::move(report.files)] {
    timer_.reset();
    reload(files);
  });
}

}  // namespace ae::app
