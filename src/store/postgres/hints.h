// Hints as they go from process to process: short texts on a channel of the server.
//
// "inbox " and a job: its inbox has got an entry. "claim " and what a job asks of a worker, canonical JSON {agent,
// capabilities}: one may be claimed, by whoever offers that; "claim" alone, which is also what older versions say: nobody
// knows by whom. Texts are short, and so is the list of a transaction: what would be more is said as "claim".
// On a channel of its own, for those alone who wait for jobs: "rested " and jobs that have ended or wait.
// Threads: values. See docs/decisions/0031-postgres-threads.md.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "store/postgres/connection.h"
#include "store/store.h"

namespace ae::store::postgres {

inline constexpr std::size_t kHintBytes = 1024;  // the server takes less than 8,000
inline constexpr std::size_t kHintKinds = 16;    // kinds of claimable jobs that are told apart

// What a transaction will say, each once.
class HintBatch {
 public:
  void add_claimable(const std::string& agent, const std::vector<std::string>& capabilities);
  void add_inbox(const JobId& job);
  bool empty() const { return claims_.empty() && posts_.empty(); }
  std::vector<std::string> texts() const;

 private:
  std::set<std::string> claims_, posts_;
};

// Where it is said that jobs rest. Older versions do not listen there.
std::string idle_channel(const std::string& channel);
// Jobs that rest, as short texts.
std::vector<std::string> idle_texts(const std::set<JobId>& jobs);

// Says them to whoever listens there.
void add_notify(Connection& connection, const std::string& channel,
                const std::vector<std::string>& texts);
Pg<void> notify(Connection& connection, const std::string& channel,
                const std::vector<std::string>& texts);

// What cannot be read says that something may be claimed.
Hint parse_hint(std::string_view text);

}  // namespace ae::store::postgres
