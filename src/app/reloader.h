// Reloader: watches the agents files of a server and reloads them after an edit, or when a worker has
// other agents.
//
// All files are reloaded together. Invalid files are reported, and the last valid ones stay in use.
// Files are compared by content, a few times a second: this also covers editors that replace a file
// by a rename, symbolic links, and network file systems. A file that is missing for a moment is not
// a change. Threads: the loop's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/instance.h"
#include "async/alive.h"
#include "base/error.h"
#include "base/ids.h"

namespace ae::app {

class Reloader {
 public:
  static constexpr Duration kPollEvery = std::chrono::milliseconds(250);
  // Delay after an unavailable store or an unreadable file.
  static constexpr Duration kRetryAfter = std::chrono::seconds(5);

  struct Report {
    std::vector<std::string> files;               // the edited ones
    std::vector<agents::Diagnostic> diagnostics;  // of invalid files; then nothing was reloaded
    std::optional<Error> error;                   // the reason that nothing was reloaded
    std::vector<api::AgentChange> changes;        // the registered agents
    std::vector<std::string> warnings;            // about the files now in use
  };
  struct Options {
    std::vector<std::string> files;
    std::string policies = {};  // "" = none
    bool is_watching = true;    // false: only reload_soon
    // The agents and tools of workers, a part of the first file (AgentsFileOptions::code).
    std::function<std::string()> code = {};
    bool needs_agents = true;  // AgentsFileOptions::needs_agents
    Duration poll_every = kPollEvery, retry_after = kRetryAfter;
  };
  // Borrows the instance, which outlives this. `loaded`: the files as the instance uses them.
  Reloader(Instance& instance, Options options, const LoadedAgents& loaded,
           std::function<void(const Report&)> report);
  ~Reloader();
  Reloader(const Reloader&) = delete;
  Reloader& operator=(const Reloader&) = delete;

  void begin() { schedule_poll(); }
  // `code` has changed.
  void reload_soon();
  // A reload was requested or has begun; a report follows.
  bool is_reloading() const { return has_new_code_ || !timer_; }

 private:
  struct File {
    std::string stamp;    // at the last poll: inode, size and times
    std::string handled;  // the stamp of the last compared content
    Hash content;         // in use or reported
  };
  void schedule_poll();
  void schedule_poll(Duration wait);
  void poll();
  void reload(std::vector<std::string> edited);
  enum class Then { poll, retry };
  bool matches_compared(const std::map<std::string, Hash>& read);
  bool is_edited_since_poll() const;
  void mark_edited(const std::vector<std::string>& edited);
  void finish(Report report, Then then);
  static void add(std::vector<agents::Diagnostic>& all, std::vector<agents::Diagnostic> more);

  Instance& instance_;
  const Options options_;
  const std::function<void(const Report&)> report_;
  std::map<std::string, File> files_;  // by path
  bool has_new_code_ = false;
  std::string last_error_;  // the error that is retried; "" = none
  std::optional<async::TimerId> timer_;
  async::Alive alive_;
};

}  // namespace ae::app
