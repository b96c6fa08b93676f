#include "app/reloader.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "app/file_stamp.h"
#include "app/merge_agents.h"
#include "base/hash.h"

namespace ae::app {
namespace {

// Larger files are invalid (agents file, lock and policies alike), so the rest does not matter.
constexpr std::size_t kReadMax = (64u << 20) + 1;

// nullopt: unreadable, or not a regular file (reading a pipe could block the loop).
std::optional<Hash> content_of(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  struct stat found{};
  bool whole = ::fstat(file, &found) == 0 && S_ISREG(found.st_mode);
  std::string text;
  std::array<char, 65536> buffer;
  while (whole && text.size() < kReadMax) {
    const ssize_t size = ::read(file, buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size == 0) break;
    whole = size > 0;
    if (whole) text.append(buffer.data(), static_cast<std::size_t>(size));
  }
  ::close(file);
  return whole ? std::optional(sha256(text)) : std::nullopt;
}

}  // namespace

Reloader::Reloader(Instance& instance, Options options, const LoadedAgents& loaded,
                   std::function<void(const Report&)> report)
    : instance_(instance), options_(std::move(options)), report_(std::move(report)) {
  for (const auto& [path, content] : loaded.read) files_[path].content = content;
  for (const LoadedAgents& more : loaded.more) {
    for (const auto& [path, content] : more.read) files_[path].content = content;
  }
}

Reloader::~Reloader() {
  if (timer_) instance_.loop().cancel(*timer_);
}

void Reloader::reload_soon() {
  has_new_code_ = true;
  // Without a timer a reload is under way; the poll after it finds the flag.
  if (timer_ && options_.poll_every > Duration(0)) {
    instance_.loop().cancel(*timer_);
    schedule_poll(Duration(0));
  }
}

void Reloader::schedule_poll() { schedule_poll(options_.poll_every); }

void Reloader::schedule_poll(Duration wait) {
  timer_ = instance_.loop().after(wait, [this] {
    timer_.reset();
    poll();
  });
}

void Reloader::poll() {
  if (!options_.is_watching) {
    if (std::exchange(has_new_code_, false)) return reload({});
    return schedule_poll();
  }
  // Edits in progress are not used: all files must be unchanged since the last poll.
  bool is_stable = true;
  for (auto& [path, file] : files_) {
    std::string stamp = file_stamp(path);
    is_stable = is_stable && stamp == file.stamp;
    file.stamp = std::move(stamp);
  }
  if (!is_stable) return schedule_poll();
  std::vector<std::string> edited;
  for (auto& [path, file] : files_) {
    if (file.stamp.empty() || file.stamp == file.handled) continue;
    const auto content = content_of(path);
    if (!content || file_stamp(path) != file.stamp) continue;
    file.handled = file.stamp;
    if (*content == file.content) continue;
    file.content = *content;
    edited.push_back(path);
  }
  if (edited.empty() && !has_new_code_) return schedule_poll();
  has_new_code_ = false;
  reload(std::move(edited));
}

// Was the compared content loaded? Otherwise a file was edited in between. A missing lock file
// counts as edited when it reappears, because the loaded state lacks it.
bool Reloader::matches_compared(const std::map<std::string, Hash>& read) {
  return std::ranges::all_of(read, [this](const auto& one) {
    const auto found = files_.find(one.first);
    if (found == files_.end()) return false;
    File& file = found->second;
    if (one.second == Hash() && file.stamp.empty()) file = {};
    return file.content == one.second;
  });
}

bool Reloader::is_edited_since_poll() const {
  return std::ranges::any_of(
      files_, [](const auto& one) { return file_stamp(one.first) != one.second.stamp; });
}

// These files count as edited until they are loaded.
void Reloader::mark_edited(const std::vector<std::string>& edited) {
  for (const std::string& path : edited) {
    files_[path].content = Hash();
    files_[path].handled.clear();
  }
  schedule_poll();
}

// The policies file is loaded with each file: its diagnostics are reported once.
void Reloader::add(std::vector<agents::Diagnostic>& all, std::vector<agents::Diagnostic> more) {
  for (agents::Diagnostic& fault : more) {
    const bool known = std::ranges::any_of(all, [&](const agents::Diagnostic& one) {
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
  for (const auto& [path, file] : files_) {
    if (content_of(path) || file_stamp(path).empty()) continue;
    report.error =
        Error{Code::usage, fmt::format("cannot read {}: it must be a readable file", path)};
    return finish(std::move(report), Then::retry);
  }
  std::string code = options_.code ? options_.code() : "";
  std::vector<std::string> paths = options_.files;
  if (paths.empty()) paths.emplace_back();  // only code
  for (const std::string& path : paths) {
    auto one = load_agents(path, {.servers = ServerListing::never,
                                  .policies = options_.policies,
                                  .code = std::exchange(code, {}),
                                  .needs_agents = options_.needs_agents});
    if (!one) {
      // A file with invalid content is loaded again once it is edited.
      const bool invalid = one.error().code == Code::plan_invalid;
      if (invalid && is_edited_since_poll()) return mark_edited(report.files);
      report.error = std::move(one).error();
      return finish(std::move(report), invalid ? Then::poll : Then::retry);
    }
    if (!matches_compared(one->read)) return mark_edited(report.files);
    add(report.diagnostics, std::move(one->diagnostics));
    files.emplace_back(path, *std::move(one));
  }
  if (!report.diagnostics.empty()) return finish(std::move(report), Then::poll);
  report.warnings = agents_warnings(files, options_.policies);
  auto all = merge_agents(std::move(files));
  if (!all) {
    report.error = std::move(all).error();
    return finish(std::move(report), Then::poll);
  }
  instance_.reload(std::make_shared<const LoadedAgents>(*std::move(all)),
                   [this, alive = alive_.watch(), report = std::move(report)](
                       Result<std::vector<api::AgentChange>> changes) mutable {
                     if (!alive) return;
                     if (changes) {
                       report.changes = *std::move(changes);
                     } else {
                       report.error = std::move(changes).error();
                     }
                     const bool passing =
                         report.error && (report.error->code == Code::unavailable ||
                                          report.error->code == Code::unknown_outcome);
                     finish(std::move(report), passing ? Then::retry : Then::poll);
                   });
}

void Reloader::finish(Report report, Then then) {
  // A repeated error is reported once.
  const std::string error = report.error ? report.error->message : "";
  if (error.empty() || error != last_error_) report_(report);
  last_error_ = then == Then::retry ? error : "";
  if (then == Then::poll) return schedule_poll();
  timer_ = instance_.loop().after(options_.retry_after, [this, files = std::move(report.files)] {
    timer_.reset();
    reload(files);
  });
}

}  // namespace ae::app
