// HintBatch: hints between processes, short texts on a notification channel of the server.
//
// "inbox " and a job: its inbox has a new entry. "claim " and a job's requirements, canonical JSON
// {agent, capabilities}: a job is claimable by workers that offer them. "claim" alone (also sent by
// older versions): a job may be claimable, requirements unknown. Texts and the list of a
// transaction are limited: what exceeds a limit is sent as "claim".
// On a separate channel, for processes that wait for jobs: "idle " and jobs that ended or wait.
// Threads: values. See docs/decisions/0031-postgres-threads.md.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "store/postgres/connection.h"
#include "store/store.h"

namespace ae::store::postgres {

inline constexpr std::size_t kHintBytes = 1024;  // the server's limit is 8,000
inline constexpr std::size_t kHintKinds = 16;    // distinct requirements of claimable jobs

// The hints of one transaction, each once.
class HintBatch {
 public:
  void add_claimable(const std::string& agent, const std::vector<std::string>& capabilities);
  void add_inbox(const JobId& job);
  bool empty() const { return claim_hints_.empty() && inbox_hints_.empty(); }
  std::vector<std::string> texts() const;

 private:
  std::set<std::string> claim_hints_, inbox_hints_;
};

// The channel of idle jobs. Older versions do not listen to it; they send "rested " and jobs on a
// channel of that name.
std::string idle_channel(const std::string& channel);
// All channels of this version and of older ones.
std::vector<std::string> listened_channels(const std::string& channel);
// Hints for idle jobs, as short texts.
std::vector<std::string> idle_texts(const std::set<JobId>& jobs);

// Sends them to the listeners of the channel.
void add_notify(Connection& connection, const std::string& channel,
                const std::vector<std::string>& texts);
Pg<void> notify(Connection& connection, const std::string& channel,
                const std::vector<std::string>& texts);

// An unreadable text is parsed as "claim".
Hint parse_hint(std::string_view text);

}  // namespace ae::store::postgres
