// Reloader: watches the agents files of a server and reloads them when they are edited.
//
// All files are read again together. Broken files are reported, and the last sound ones stay in use. Files are compared
// by content, a few times a second: that also sees editors that replace a file by a rename, symbolic links, and folders
// of other machines. A file that is missing for a moment is not a change. Threads: the loop's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/instance.h"
#include "base/error.h"
#include "base/ids.h"

namespace ae::app {

class Reloader {
 public:
  static constexpr Duration kPollEvery = std::chrono::milliseconds(250);
  // The store did not answer, or a file could not be read: another one may have been edited at the same time.
  static constexpr Duration kRetryAfter = std::chrono::seconds(5);

  struct Report {
    std::vector<std::string> files;              // that were edited
    std::vector<agents::Diagnostic> faults;      // of broken files; then nothing was reloaded
    std::optional<Error> error;                  // why nothing was reloaded
    std::vector<api::Api::AgentChange> changes;  // what was registered
    std::vector<std::string> warnings;           // about the files that are in use now
  };
  struct Options {
    std::vector<std::string> files;
    std::string policies = {};  // "" = none
    Duration poll_every = kPollEvery, retry_after = kRetryAfter;
  };
  // Borrows the site, which outlives this. `loaded`: the files as the site has them.
  Reloader(Instance& instance, Options options, const LoadedAgents& loaded,
           std::function<void(const Report&)> report);
  ~Reloader();
  Reloader(const Reloader&) = delete;
  Reloader& operator=(const Reloader&) = delete;

  void begin() { schedule_poll(); }

 private:
  struct File {
    std::string stamp;    // of the last look: inode, size and times
    std::string handled;  // the stamp of the content that was compared last
    Hash content;         // that is in use, or was reported
  };
  void schedule_poll();
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
  std::string last_error_;             // the error that is retried; "" = none
  std::optional<async::TimerId> timer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ae::app
